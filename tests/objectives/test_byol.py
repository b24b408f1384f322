"""The loss by hand, and the target network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.objectives.making import cosine, make, some_views


def test_byol_by_hand(tiny_photos: Tensor) -> None:
    objective, views = make("byol"), some_views(tiny_photos)
    byol, network = objective.terms["byol"], objective.network
    loss = float(objective.outcomes(views)["byol"].loss)
    x1, x2 = views.large
    p1, p2 = (byol.q(network.g(network.f(x))) for x in (x1, x2))
    t1, t2 = (byol.target.g(byol.target.f(x)) for x in (x1, x2))
    assert loss == pytest.approx(-(cosine(p1, t2) + cosine(p2, t1)) / 2, abs=1e-5)
    assert -1 <= loss <= 1
    big = make("byol", byol={"loss_scale": 4.0}).outcomes(views)["byol"].loss
    assert float(big) == pytest.approx(4 * loss, rel=1e-5)


def test_byol_target_gets_no_gradient_and_moves_by_its_share(tiny_photos: Tensor) -> None:
    objective = make("byol", byol={"momentum": 0.9, "momentum_end": 0.0})
    byol, network = objective.terms["byol"], objective.network
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    objective(some_views(tiny_photos))[0].backward()
    assert all(p.grad is None for p in byol.target.parameters())
    before = [p.clone() for p in byol.target.parameters()]
    optimizer.step()
    objective.after_update(0.5)
    for old, new, online in zip(before, byol.target.parameters(), network.parameters(), strict=True):
        assert torch.allclose(new, 0.9 * old + 0.1 * online, atol=1e-7)
    assert not any(torch.equal(a, b) for a, b in zip(before, byol.target.parameters(), strict=True) if a.ndim > 1)


def test_byol_target_keeps_its_own_batch_norm_statistics(tiny_photos: Tensor) -> None:
    objective = make("byol")
    target, online = objective.terms["byol"].target.encoder.backbone.bn1, objective.network.encoder.backbone.bn1
    objective(some_views(tiny_photos))
    assert target.running_mean.abs().sum() > 0  # it ran in train mode
    assert target.running_mean.data_ptr() != online.running_mean.data_ptr()


def test_byol_momentum_goes_to_its_end_by_cosine(tiny_photos: Tensor) -> None:
    objective = make("byol", byol={"momentum": 0.5, "momentum_end": 1.0})
    byol = objective.terms["byol"]
    for p in objective.network.parameters():
        p.data.add_(1)
    before = [p.clone() for p in byol.target.parameters()]
    objective.after_update(1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, byol.target.parameters(), strict=True))
    objective.after_update(0.5)  # τ = 0.75
    moved = next(byol.target.parameters()) - before[0]
    assert torch.allclose(moved, torch.full_like(moved, 0.25), atol=1e-5)
