"""Versions of the software that a result depends on."""

from __future__ import annotations

import platform
import subprocess
from functools import lru_cache
from pathlib import Path

EFFSSL = "0.1.0"
"""The version of this package."""
PACKAGES = ("torch", "torchvision", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python, effssl and the libraries that it computes with; of a checkout, the commit too."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    found = {"python": platform.python_version(), "effssl": EFFSSL}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found | ({"commit": commit()} if commit() else {})


@lru_cache(maxsize=1)
def commit() -> str:
    """The commit of the checkout that this package is run from, `-dirty` if files differ; empty if it is installed."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
