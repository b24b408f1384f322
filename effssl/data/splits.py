"""Random choices of images, the same share of every class."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def pick_per_class(labels: Tensor, count: Callable[[int], int], g: torch.Generator) -> Tensor:
    """Rows of `count(n)` random images of each class with n images, class by class, shuffled inside a class.

    >>> labels = torch.tensor([0, 0, 0, 0, 1, 1])
    >>> labels[pick_per_class(labels, lambda n: n // 2, torch.Generator().manual_seed(0))].tolist()
    [0, 0, 1]
    """
    rows = [(labels == label).nonzero().squeeze(1) for label in labels.unique()]
    picked = [part[torch.randperm(len(part), generator=g)[: count(len(part))]] for part in rows]
    return torch.cat(picked) if picked else torch.empty(0, dtype=torch.long)
