"""How a number changes over a run: cosine, step decay, linear warm-up. `progress` is the share of it that is done."""

from __future__ import annotations

import math
from collections.abc import Sequence


def cosine(progress: float, start: float = 1.0, end: float = 0.0) -> float:
    """Half a period of a cosine from start to end.

    >>> cosine(0), cosine(0.5), cosine(1, end=0.1)
    (1.0, 0.5, 0.1)
    """
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2


def step_decay(progress: float, milestones: Sequence[float], factor: float) -> float:
    """1, multiplied by `factor` at each milestone that is reached.

    >>> step_decay(0.7, (0.6, 0.8), 0.5)
    0.5
    """
    return factor ** sum(progress >= milestone for milestone in milestones)


def linear_warmup(step: int, steps: float, start: float, end: float) -> float:
    """From start to end in `steps` steps, whose first one is already above start.

    >>> linear_warmup(0, 4, 0.0, 1.0), linear_warmup(3, 4, 0.0, 1.0)
    (0.25, 1.0)
    """
    return start + (end - start) * (step + 1) / steps
