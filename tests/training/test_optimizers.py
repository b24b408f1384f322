from __future__ import annotations

import pytest
import torch
from torch import nn

from effssl.training.optimizers import LARS


def by_hand(
    w: torch.Tensor, grads: list[torch.Tensor], lr: float, decay: float, trust: float, clip: bool
) -> torch.Tensor:
    """LARS, one weight at a time."""
    v = None
    for g in grads:
        if w.ndim > 1:
            ratio = trust * w.norm() / (g.norm() + decay * w.norm())
            if clip:
                ratio = min(ratio / lr, torch.tensor(1.0))
            g = (g + decay * w) * ratio
        v = g if v is None else 0.9 * v + g
        w = w - lr * v
    return w


@pytest.mark.parametrize("clip", [False, True])
def test_lars_by_hand_leaves_biases_and_norms_alone(clip: bool) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    start = [p.detach().clone() for p in module.parameters()]
    grads = [[torch.randn_like(p) for p in module.parameters()] for _ in range(3)]
    optimizer = LARS(module.parameters(), 0.5, 0.9, 1e-2, 0.02, clip)
    for step in grads:
        for p, g in zip(module.parameters(), step, strict=True):
            p.grad = g.clone()
        optimizer.step()
    for i, p in enumerate(module.parameters()):
        expected = by_hand(start[i], [step[i] for step in grads], 0.5, 1e-2, 0.02, clip)
        assert torch.allclose(p, expected, atol=1e-6)
