"""A queue of past embeddings as a ring of rows, for the terms that have one."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def enqueue(queue: Tensor, position: Tensor, rows: Tensor) -> None:
    """Write rows N×D over the oldest ones of a queue L×D; of more rows than it holds the last ones stay.

    >>> queue, position = torch.zeros(3, 1), torch.tensor(2)
    >>> enqueue(queue, position, torch.tensor([[1.], [2.]]))
    >>> queue.flatten().tolist(), int(position)
    ([2.0, 0.0, 1.0], 1)
    """
    length = len(queue)
    rows = rows[-length:]
    places = (position + torch.arange(len(rows), device=rows.device)) % length
    queue.index_copy_(0, places, rows)
    position.copy_((position + len(rows)) % length)
