"""Versions of the software that a result depends on."""

from __future__ import annotations

import platform

EFFSSL = "0.1.0"
"""The version of this package."""
PACKAGES = ("torch", "torchvision", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python, effssl and the libraries that it computes with."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    found = {"python": platform.python_version(), "effssl": EFFSSL}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found
