"""Exact rotation by quarter turns, with one angle per image."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate_quarters(x: Tensor, turns: Tensor) -> Tensor:
    """Turn square images N×C×S×S counter-clockwise by `turns` (N, on the CPU) quarter turns; pixels are only moved.

    >>> x = torch.arange(4.).view(1, 1, 2, 2)
    >>> rotate_quarters(x, torch.tensor([1]))[0, 0].tolist()
    [[1.0, 3.0], [0.0, 2.0]]
    """
    out = torch.empty_like(x)
    for k in range(4):
        rows = (turns % 4 == k).nonzero().squeeze(1).to(x.device, non_blocking=True)
        out.index_copy_(0, rows, torch.rot90(x.index_select(0, rows), k, (2, 3)))
    return out
