"""Solarization: invert bright pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from effssl.augment.change import Change


def solarize(x: Tensor, threshold: float) -> Tensor:
    """Invert the pixels at or above the threshold; not in place, and of any shape."""
    return torch.where(x >= threshold, 1 - x, x)


CHANGE = Change(
    lambda config: config.solarize,
    lambda config, uniform: torch.ones_like(uniform),
    lambda config, x, amount: solarize(x, config.solarize_threshold),
)
