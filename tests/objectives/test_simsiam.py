"""The loss by hand, stop-gradient, and the predictor's learning rate."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from effssl.training.build import build_objective
from effssl.training.optimizers import build_optimizer, set_learning_rate
from tests.objectives.making import CPU, cosine, make, plan, some_views


def test_simsiam_by_hand_and_stop_gradient(tiny_photos: Tensor) -> None:
    objective = make("simsiam")
    views = some_views(objective, tiny_photos)
    term, network = objective.terms["simsiam"], objective.network
    loss = objective.outcomes(views)["simsiam"].loss
    z1, z2 = (network.project(x) for x in views.pixels["large"])
    p1, p2 = term.q(z1), term.q(z2)
    assert float(loss) == pytest.approx(-(cosine(p1, z2) + cosine(p2, z1)) / 2, abs=1e-5)
    grads = []
    for stop in (True, False):
        objective = make("simsiam", simsiam={"stop_gradient": stop})
        objective(views)[0].backward()
        grads.append(next(objective.network.parameters()).grad.clone())
    assert not torch.allclose(*grads, rtol=1e-3)


def test_simsiam_predictor_has_a_constant_learning_rate() -> None:
    the_plan = plan("simsiam+rotation", lr=0.1)
    objective = build_objective(the_plan, CPU)
    optimizer = build_optimizer(the_plan.config.optimizer, objective, 0.1)
    set_learning_rate(optimizer, 0.01)
    predictor = {id(p) for p in objective.terms["simsiam"].q.parameters()}
    for group in optimizer.param_groups:
        held = {id(p) for p in group["params"]} == predictor
        assert group["lr"] == (0.1 if held else 0.01)
    counted = sum(len(group["params"]) for group in optimizer.param_groups)
    assert counted == len([p for p in objective.parameters() if p.requires_grad])
