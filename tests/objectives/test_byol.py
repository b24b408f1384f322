"""The loss by hand, and the target network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.objectives.making import ONE_SIDED, ROTATED_ONLINE, cosine, make, some_views


def test_byol_by_hand(tiny_photos: Tensor) -> None:
    objective = make("byol")
    views = some_views(objective, tiny_photos)
    byol, network = objective.terms["byol"], objective.network
    loss = float(objective.outcomes(views)["byol"].loss)
    p1, p2 = (byol.q(network.project(x)) for x in views.pixels["large"])
    t1, t2 = (byol.target_network.project(x) for x in views.pixels["large"])
    assert loss == pytest.approx(-(cosine(p1, t2) + cosine(p2, t1)) / 2, abs=1e-5)
    assert -1 <= loss <= 1
    big = make("byol", byol={"loss_scale": 4.0}).outcomes(views)["byol"].loss
    assert float(big) == pytest.approx(4 * loss, rel=1e-5)


@pytest.mark.parametrize("base", ["byol", "simsiam"])
def test_one_online_view_and_rotated_ones_against_one_target_by_hand(tiny_photos: Tensor, base: str) -> None:
    objective = make(f"{base}+rotation", views=ONE_SIDED | {"rotated": ROTATED_ONLINE})
    network, q = objective.network, objective.terms[base].q
    torch.nn.init.normal_(objective.angle_embedding.weight)
    views = some_views(objective, tiny_photos)
    found = float(objective.outcomes(views)[base].loss.detach())
    target = objective.terms[base].target_network if base == "byol" else network
    with torch.no_grad():
        t = target.project(views.pixels["target"][0])
        z = network.project(views.pixels["large"][0])
        told = network.project(views.pixels["rotated"].flatten(0, 1))
        told = told + objective.angle_embedding(views.angles["rotated"].flatten())
        expected = -(cosine(q(z), t) + 2 * cosine(q(told), t.repeat(2, 1))) / 3
    assert found == pytest.approx(expected, abs=1e-5)


def test_byol_target_gets_no_gradient_and_moves_by_its_share(tiny_photos: Tensor) -> None:
    objective = make("byol", byol={"momentum": 0.9, "momentum_end": 0.0})
    byol, network = objective.terms["byol"], objective.network
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    objective(some_views(objective, tiny_photos))[0].backward()
    assert all(p.grad is None for p in byol.target_network.parameters())
    before = [p.clone() for p in byol.target_network.parameters()]
    optimizer.step()
    objective.after_update(0.5)
    for old, new, online in zip(before, byol.target_network.parameters(), network.parameters(), strict=True):
        assert torch.allclose(new, 0.9 * old + 0.1 * online, atol=1e-7)
    pairs = zip(before, byol.target_network.parameters(), strict=True)
    assert not any(torch.equal(a, b) for a, b in pairs if a.ndim > 1)


def test_byol_target_keeps_its_own_batch_norm_statistics(tiny_photos: Tensor) -> None:
    objective = make("byol")
    target, online = objective.terms["byol"].target_network.encoder.backbone.bn1, objective.network.encoder.backbone.bn1
    objective(some_views(objective, tiny_photos))
    assert target.running_mean.abs().sum() > 0  # it ran in train mode
    assert target.running_mean.data_ptr() != online.running_mean.data_ptr()


def test_byol_momentum_reaches_its_end_by_cosine() -> None:
    objective = make("byol", byol={"momentum": 0.5, "momentum_end": 1.0})
    byol = objective.terms["byol"]
    for p in objective.network.parameters():
        p.data.add_(1)
    before = [p.clone() for p in byol.target_network.parameters()]
    objective.after_update(1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, byol.target_network.parameters(), strict=True))
    objective.after_update(0.5)  # τ = 0.75
    moved = next(byol.target_network.parameters()) - before[0]
    assert torch.allclose(moved, torch.full_like(moved, 0.25), atol=1e-5)
