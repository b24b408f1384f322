"""An exponential moving average of the weights, which evaluations and the finished encoder use in their place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from effssl.objectives.objective import Objective


class WeightAverage:
    """ψ ← dψ + (1 − d)θ after every update, d = min(decay, (1 + n)/(10 + n)) after n updates.

    A short run would else keep its initial weights: 0.999 forgets half of them in 700 updates. θ are all trained
    weights, those of heads too, and the network's running statistics, which belong to its weights.
    """

    def __init__(self, objective: Objective, decay: float) -> None:
        self.decay = decay
        weights = {name: p for name, p in objective.named_parameters() if p.requires_grad}
        buffers = {f"network.{name}": b for name, b in objective.network.named_buffers() if b.is_floating_point()}
        self.current: dict[str, Tensor] = weights | buffers
        self.average = {name: tensor.detach().clone() for name, tensor in self.current.items()}

    @torch.no_grad()
    def update(self, updates: int) -> None:
        """Follow the weights after so many updates."""
        decay = min(self.decay, (1 + updates) / (10 + updates))
        torch._foreach_lerp_(list(self.average.values()), [x.detach() for x in self.current.values()], 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """A block in which the objective has the averaged weights; it trains on with its own."""
        own = {name: tensor.detach().clone() for name, tensor in self.current.items()}
        self._write(self.average)
        try:
            yield
        finally:
            self._write(own)

    def restore(self, average: dict[str, Tensor]) -> None:
        """Return to a saved average."""
        for name, tensor in self.average.items():
            tensor.copy_(average[name])

    @torch.no_grad()
    def _write(self, tensors: dict[str, Tensor]) -> None:
        torch._foreach_copy_([x.detach() for x in self.current.values()], list(tensors.values()))
