"""A change of some views, chosen at random: one file of `effssl.augment.changes` each, found by itself.

Adding one takes that file and its settings in `augment/options.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from effssl.augment.options import Augment


@dataclass(frozen=True)
class Change:
    """How often, how strongly, and what."""

    probability: Callable[[Augment], tuple[float, ...]]  # for all views, or per view
    amount: Callable[[Augment, Tensor], Tensor]  # from uniform numbers N, on the CPU; never 0
    apply: Callable[[Augment, Tensor, Tensor], Tensor]  # settings, views M×C×S×S in [0, 1], amounts M: the new views
