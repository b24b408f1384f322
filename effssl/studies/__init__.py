"""Experiments as data: arms, published numbers, claims; one runner for all of them."""

from __future__ import annotations

from effssl.runtime.errors import RequestError, did_you_mean
from effssl.studies.study import Study


def _all() -> dict[str, Study]:
    from effssl.studies import efficiency, paper

    return paper.STUDIES | efficiency.STUDIES


def names() -> list[str]:
    """E01 … E20 of the paper, and C01 … C05 against compute."""
    return list(_all())


def load(name: str) -> Study:
    """A study by its name."""
    known = _all()
    if name.upper() not in known:
        raise RequestError(f"unknown study {name!r}{did_you_mean(name.upper(), known)}; `effssl study list` has all")
    return known[name.upper()]
