"""One batch on its way through the network: online views, targets, pairs, batch norm."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from effssl.augment.options import ViewGroup
from effssl.objectives.step import Step, frozen_statistics, view_pairs
from tests.objectives.making import BATCH, ONE_SIDED, ROTATED_ONLINE, make, passes_of, some_views


def test_joint_pass_shares_statistics(tiny_photos: Tensor) -> None:
    objective = make("byol")
    views, network = some_views(objective, tiny_photos), objective.network

    def z(joint: bool) -> Tensor:
        return Step(network, views, {"large": ViewGroup(2, joint_pass=joint)}).z("large")

    assert z(False).shape == z(True).shape == (2, BATCH, network.z_dim)
    assert not torch.allclose(z(False), z(True), atol=1e-4)
    network.eval()
    assert torch.allclose(z(False), z(True), atol=1e-4)


def test_targets_of_the_network_itself_reuse_online_views(tiny_photos: Tensor) -> None:
    objective = make("simsiam")
    seen = passes_of(objective)
    step = objective.step(some_views(objective, tiny_photos))
    assert torch.equal(step.online(), step.targets())
    assert step.targets().requires_grad
    assert len(seen) == 2


def test_views_that_are_only_targets_have_no_gradient(tiny_photos: Tensor) -> None:
    objective = make("simsiam", views=ONE_SIDED)
    seen = passes_of(objective)
    step = objective.step(some_views(objective, tiny_photos))
    assert step.online().requires_grad
    assert not step.targets().requires_grad
    assert seen == [(BATCH, 24, True), (BATCH, 24, False)]


def test_an_angle_embedding_is_added_to_online_projections_only(tiny_photos: Tensor) -> None:
    objective = make("byol+rotation", views={"rotated": ROTATED_ONLINE})
    torch.nn.init.normal_(objective.angle_embedding.weight)
    views = some_views(objective, tiny_photos)
    step = objective.step(views)
    online, z = step.online(), step.z("rotated")
    told = z + objective.angle_embedding.weight[views.angles["rotated"]]
    assert torch.equal(online[:2], step.z("large"))
    assert torch.equal(online[2:], told)
    plain = make("byol+rotation", views={"rotated": ROTATED_ONLINE | {"angle_embedding": False}})
    assert plain.angle_embedding is None


def test_pairs_leave_out_a_view_with_itself() -> None:
    large, target = ViewGroup(2, online=True, target=True), ViewGroup(1, target=True)
    small = ViewGroup(2, online=True)
    assert view_pairs({"large": large}) == [(0, 1), (1, 0)]
    assert view_pairs({"large": large, "small": small}) == [(0, 1), (1, 0), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert view_pairs({"target": target, "small": small}) == [(0, 0), (1, 0)]
    assert view_pairs({"large": ViewGroup(1, online=True, target=True)}) == []


def test_running_statistics_can_be_left_alone(tiny_photos: Tensor) -> None:
    def statistics(objective: str, **flags) -> Tensor:
        built = make(objective, **flags)
        built(some_views(built, tiny_photos))
        return built.network.encoder.backbone.layer4[0].bn2.running_var

    base = statistics("byol")
    assert torch.equal(statistics("byol+rotation", views={"rotated": {"update_stats": False}}), base)
    assert not torch.equal(statistics("byol+rotation"), base)


def test_frozen_statistics_restores_momentum_after_an_error() -> None:
    norm = torch.nn.BatchNorm1d(3, momentum=0.3)

    def fail() -> None:
        with frozen_statistics(norm, True):
            assert norm.momentum == 0
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert norm.momentum == 0.3
