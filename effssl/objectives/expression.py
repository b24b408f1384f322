"""The language of objectives: `byol+rotation`, `simclr + 0.5*rotation`, `rotation`."""

from __future__ import annotations

import math
import re

from effssl.objectives.options import TERMS
from effssl.runtime.errors import RequestError, did_you_mean

_SUMMAND = re.compile(r"(?:(?P<weight>[^*\s]+)\s*\*\s*)?(?P<name>[A-Za-z_]\w*)")


def parse(text: str) -> dict[str, float | None]:
    """Terms in order, each with its written weight, or None.

    >>> parse("simsiam + 0.2*rotation")
    {'simsiam': None, 'rotation': 0.2}
    """
    terms: dict[str, float | None] = {}
    # A plus sign inside a number (1e+2) does not separate terms.
    for part in re.split(r"(?<![0-9][eE])\+", text):
        match = _SUMMAND.fullmatch(part.strip())
        if match is None:
            raise RequestError(
                f"objective {text!r}: cannot parse {part.strip()!r}; write terms joined by +, each with an optional "
                f"weight, like byol + 0.4*rotation (terms: {', '.join(TERMS)})"
            )
        name, weight = match["name"].lower(), match["weight"]
        if name not in TERMS:
            unknown = f"unknown term {name!r}{did_you_mean(name, TERMS)}"
            raise RequestError(f"objective {text!r}: {unknown}; terms: {', '.join(TERMS)}")
        if name in terms:
            raise RequestError(f"objective {text!r}: {name} appears twice; add the weights up")
        terms[name] = None if weight is None else _weight(weight, text)
    return terms


def _weight(weight: str, text: str) -> float:
    try:
        value = float(weight)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise RequestError(f"objective {text!r}: the weight {weight!r} is not a finite number of 0 or more")
    return value
