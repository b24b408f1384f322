from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from effssl.config import Schedule
from effssl.training.optimizers import LARS, learning_rate


def test_warm_up_meets_the_cosine() -> None:
    schedule = Schedule(warmup_epochs=10, warmup_from=0.02, final=0.001)
    lrs = [learning_rate(0.5, schedule, step, 10, 2000) for step in range(2000)]
    assert lrs[0] == pytest.approx(0.01 + (lrs[100] - 0.01) / 100, rel=1e-3)
    assert all(b > a for a, b in pairwise(lrs[:100]))
    assert all(b < a for a, b in pairwise(lrs[100:]))
    assert lrs[99] == pytest.approx(lrs[100], rel=1e-3)
    assert lrs[1000] == pytest.approx(0.5 * (0.001 + 0.999 / 2), rel=1e-3)
    assert lrs[-1] == pytest.approx(0.5 * 0.001, rel=0.01)


def test_no_warm_up_starts_at_the_peak() -> None:
    assert learning_rate(0.3, Schedule(warmup_epochs=0), 0, 10, 100) == 0.3


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


def test_steps_in_place_of_the_cosine() -> None:
    schedule = Schedule(warmup_epochs=0, steps=(0.3, 0.6, 0.8), step_factor=0.2)
    rates = [learning_rate(0.1, schedule, step, 1, 200) for step in (0, 59, 60, 119, 120, 159, 160, 199)]
    assert rates == pytest.approx([0.1, 0.1, 0.02, 0.02, 0.004, 0.004, 0.0008, 0.0008])
