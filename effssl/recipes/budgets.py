"""The dial: a time budget chooses encoder, size and number of views, batch and objective from a table of recipes."""

from __future__ import annotations

import re

from effssl.recipes.catalog import is_small, names
from effssl.runtime.errors import RequestError

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
RUNG = re.compile(r"(?P<family>budget|photos)-\w+-(?P<minutes>\d+)m")
"""Recipes of the dial: budget-<base>-<minutes>m for small images, photos-<base>-<minutes>m for photographs."""


def parse_budget(text: str) -> float:
    """Seconds of a budget like 90s, 10m, 2h or 1h30m.

    >>> parse_budget("10m"), parse_budget("1h30m"), parse_budget("1.5h")
    (600.0, 5400.0, 5400.0)
    """
    parts = re.fullmatch(r"(?:\d+(?:\.\d+)?[smhd])+", text.strip())
    if not parts:
        raise RequestError(f"a budget of {text!r} is not a time; write 90s, 10m, 2h or 1h30m")
    seconds = sum(float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+)([smhd])", text))
    if seconds <= 0:
        raise RequestError("a budget of no time leaves nothing to train in")
    return seconds


def recipe_for_budget(data: str, seconds: float, speed: float = 1.0) -> str:
    """The recipe of the dial whose time is nearest, as a ratio, to that of the budget on the reference machine.

    `speed` is this machine's, as a multiple of the machine that the table was measured on.

    >>> recipe_for_budget("cifar10", 90), recipe_for_budget("photos/", 1200, speed=0.3)
    ('budget-simclr-1m', 'photos-simclr-5m')
    """
    family = "budget" if is_small(data) else "photos"
    rungs = [(name, match) for name in names() if (match := RUNG.fullmatch(name)) and match["family"] == family]
    wanted = seconds * speed / 60
    return min(rungs, key=lambda rung: max(wanted / int(rung[1]["minutes"]), int(rung[1]["minutes"]) / wanted))[0]
