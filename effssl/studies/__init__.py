"""The paper's experiments as data: arms, published numbers, claims; one runner for all of them."""

from __future__ import annotations

from effssl.errors import RequestError, did_you_mean
from effssl.studies.study import Study


def names() -> list[str]:
    """E01 … E20."""
    from effssl.studies.paper import STUDIES

    return list(STUDIES)


def load(name: str) -> Study:
    """A study by its name."""
    from effssl.studies.paper import STUDIES

    if name.upper() not in STUDIES:
        raise RequestError(f"unknown study {name!r}{did_you_mean(name.upper(), STUDIES)}; `effssl study list` has all")
    return STUDIES[name.upper()]
