"""Rotated views that the base method learns from, too."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.objectives.objective import Step
from effssl.objectives.simclr import among_views
from effssl.runtime.errors import RequestError
from tests.objectives.making import BATCH, cosine, make, random, some_views


def seen_by(objective) -> list[tuple[int, int, bool]]:
    """Images, side and whether there is a gradient, of every pass through the encoder."""
    seen: list[tuple[int, int, bool]] = []
    objective.network.encoder.register_forward_hook(
        lambda _, args, out: seen.append((len(args[0]), args[0].shape[-1], out.requires_grad))
    )
    return seen


@pytest.mark.parametrize("for_base", ["more", "instead"])
@pytest.mark.parametrize("base", ["byol", "simsiam"])
def test_the_loss_by_hand(tiny_photos: Tensor, base: str, for_base: str) -> None:
    objective = make(f"{base}+rotation", rotation={"for_base": for_base})
    views, network, q = some_views(tiny_photos), objective.network, objective.terms[base].q
    target = objective.terms[base].target if base == "byol" else network
    torch.nn.init.normal_(objective.terms["rotation"].turn.weight)
    found = objective.outcomes(views)[base].loss

    x, labels, _ = objective.terms["rotation"].judged(Step(network, views))
    with torch.no_grad():
        told = network.project(x) + objective.terms["rotation"].turn(labels)  # 2B×D
        z1, z2 = (network.project(view) for view in views.large)
        t1, t2 = (target.project(view) for view in views.large)
        if for_base == "instead":
            expected = -cosine(q(z1), t2) - cosine(q(told), t2.repeat(2, 1))
        else:
            mean = (F.normalize(t1, dim=1) + F.normalize(t2, dim=1)) / 2
            expected = -(cosine(q(z1), t2) + cosine(q(z2), t1)) / 2 - cosine(q(told), mean.repeat(2, 1))
    assert float(found) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("base", ["byol", "simsiam", "simclr"])
def test_instead_of_the_second_view_saves_its_gradient(tiny_photos: Tensor, base: str) -> None:
    objective = make(f"{base}+rotation", rotation={"for_base": "instead", "size": 12})
    seen = seen_by(objective)
    loss, _ = objective(some_views(tiny_photos))
    loss.backward()
    answers = [] if base == "byol" else [(BATCH, 24, False)]  # the target's own encoder gives BYOL's
    assert sorted(seen) == sorted([(2 * BATCH, 12, True), (BATCH, 24, True), *answers])
    assert objective.terms["rotation"].turn.weight.grad is not None


def test_among_views_equals_the_loop() -> None:
    z, answers, tau, images = random(9, 4), random(3, 4, seed=1), 0.3, 3
    z, answers = F.normalize(z, dim=1), F.normalize(answers, dim=1)
    total = 0.0
    for i in range(len(z)):
        logits = [float(z[i] @ a) / tau for a in answers]
        logits += [float(z[i] @ z[j]) / tau for j in range(len(z)) if j % images != i % images]
        total -= math.log(math.exp(logits[i % images]) / sum(map(math.exp, logits)))
    assert float(among_views(z, answers, tau)) == pytest.approx(total / len(z), abs=1e-9)


def test_a_step_without_the_task_is_the_base_methods(tiny_photos: Tensor) -> None:
    with_task = make("byol+rotation", rotation={"for_base": "instead", "every": 2})
    views = some_views(tiny_photos, step=1)
    assert torch.equal(with_task(views)[0], make("byol")(views)[0])


@pytest.mark.parametrize(
    ("objective", "flags", "word"),
    [
        ("swav+rotation", {"rotation": {"for_base": "instead"}}, "goes with byol, simsiam, simclr alone"),
        ("moco+rotation", {"rotation": {"for_base": "more"}}, "goes with byol, simsiam, simclr, swav alone"),
        ("rotation", {"rotation": {"for_base": "more"}}, "needs a base method"),
        ("byol+rotation", {"rotation": {"for_base": "more", "on": "h"}}, "on z"),
    ],
)
def test_what_does_not_go_together(objective: str, flags: dict, word: str) -> None:
    with pytest.raises(RequestError, match=word):
        make(objective, **flags)
