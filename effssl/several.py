"""Several data sets in one value of --data, as a sum like an objective: "photos + 2*scans.csv".

A set with weight 2 has each of its images twice in an epoch, one with weight 0.5 another half of them in each.
This module does not import torch.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from effssl.runtime.errors import RequestError

PLUS = " + "
WEIGHTED = re.compile(r"(\d+(?:\.\d+)?)\s*\*\s*(.+)")
MOST_WEIGHT = 1000.0


@dataclass(frozen=True)
class WeightedSet:
    """One data set of several, as a value of --data, and how often an epoch has each of its images."""

    spec: str
    weight: float = 1.0

    def __str__(self) -> str:
        return self.spec if self.weight == 1 else f"{self.weight:g}*{self.spec}"


def split_sets(value: str) -> list[WeightedSet]:
    """The data sets that a value of --data names; a file or folder of just this name is one.

    >>> split_sets("cifar10 + 0.5*digits")
    [WeightedSet(spec='cifar10', weight=1.0), WeightedSet(spec='digits', weight=0.5)]
    """
    if PLUS not in value or Path(value).expanduser().exists():
        return [WeightedSet(value)]
    return [_weighted(part.strip()) for part in value.split(PLUS)]


def join_sets(sets: Iterable[WeightedSet | str]) -> str:
    """The other way round than `split_sets`.

    >>> join_sets(["cifar10", WeightedSet("digits", 0.5)])
    'cifar10 + 0.5*digits'
    """
    return PLUS.join(map(str, sets))


def _weighted(part: str) -> WeightedSet:
    found = WEIGHTED.fullmatch(part)
    if found is None or glob.glob(part):  # 2*.tar is a pattern where there are such files
        return WeightedSet(part)
    weight = float(found[1])
    if not 0 < weight <= MOST_WEIGHT:
        raise RequestError(f"{part}: the weight of a data set is above 0 and at most {MOST_WEIGHT:g}")
    return WeightedSet(found[2], weight)
