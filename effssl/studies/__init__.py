"""Experiments as data: arms, published numbers, claims; one runner for all of them."""

from __future__ import annotations

import importlib
import pkgutil

from effssl.runtime.errors import RequestError, did_you_mean
from effssl.studies import definitions
from effssl.studies.study import Study


def all_studies() -> dict[str, Study]:
    """All studies by name: `STUDIES` of every module in `effssl/studies/definitions`, those of the paper first."""
    modules = sorted(
        (item.name for item in pkgutil.iter_modules(definitions.__path__)), key=lambda n: (n != "paper", n)
    )
    found: dict[str, Study] = {}
    for name in modules:
        found |= importlib.import_module(f"{definitions.__name__}.{name}").STUDIES
    return found


def names() -> list[str]:
    """Names of all studies, e.g. E01 … E20 of the paper, C01 … C05 against compute, B01 newer base methods."""
    return list(all_studies())


def load(name: str) -> Study:
    """A study by its name."""
    known = all_studies()
    if name.upper() not in known:
        raise RequestError(f"unknown study {name!r}{did_you_mean(name.upper(), known)}; `effssl study list` shows all")
    return known[name.upper()]
