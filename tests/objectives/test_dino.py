"""The loss by hand, center, teacher and frozen prototypes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from effssl.data import Data
from tests.objectives.making import first_views, losses_of_epochs, make, trainer_of

FLAGS = {"recipe": "cpu-dino", "dino": {"prototypes": 7, "freeze_epochs": 0.0}}
SMALL = {"views": {"small": {"count": 2, "size": 16, "joint_pass": False}}}


def scores(z: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """Cosines of one view's projections, B×D, with all prototypes."""
    return torch.stack([F.cosine_similarity(z, one[None], dim=1) for one in directions], 1)


def test_the_loss_by_hand_with_small_crops(data: Data) -> None:
    flags = FLAGS | SMALL
    objective, views = make("dino", data, **flags), first_views(data, "dino", **flags)
    term = objective.terms["dino"]
    term.center.copy_(torch.linspace(-0.2, 0.2, 7))
    loss = float(objective.outcomes(views)["dino"].loss.detach())
    z = objective.step(views).online().detach()  # the teacher is still the same network
    expected = []
    for t in (0, 1):
        teacher = ((scores(z[t], term.target_prototypes.weight) - term.center) / 0.04).softmax(1)
        for v in range(4):
            if v != t:
                student = (scores(z[v], term.prototypes.weight.detach()) / 0.1).softmax(1)
                expected.append(float(-(teacher * student.log()).sum(1).mean()))
    assert len(expected) == 6
    assert loss == pytest.approx(sum(expected) / 6, abs=1e-4)


def test_the_center_is_a_running_mean_of_the_teachers_scores(data: Data) -> None:
    trainer = trainer_of("dino", data, **FLAGS)
    term = trainer.objective.terms["dino"]
    expected = torch.zeros(7)
    for views in trainer.loader.epoch(0):
        seen = []
        hook = term.target_prototypes.register_forward_hook(lambda _, args, out, seen=seen: seen.append(out))
        trainer.step(views)
        hook.remove()
        expected = 0.9 * expected + 0.1 * torch.cat([x.flatten(0, -2) for x in seen]).mean(0)
        assert torch.allclose(term.center, expected, atol=1e-6)
    assert float(term.center.abs().max()) > 0.001


def test_micro_batches_have_one_center(data: Data) -> None:
    trainer = trainer_of("dino", data, accumulate=2, **FLAGS)
    term = trainer.objective.terms["dino"]
    seen = []
    term.target_prototypes.register_forward_hook(lambda _, args, out: seen.append(out))
    trainer.step(next(trainer.loader.epoch(0)))
    assert len(seen) == 2
    assert torch.allclose(term.center, 0.1 * torch.cat(seen, 1).mean((0, 1)), atol=1e-6)


def test_the_teacher_follows_with_its_momentum_and_has_no_gradient(data: Data) -> None:
    flags = FLAGS | {"dino": FLAGS["dino"] | {"momentum": 0.9, "momentum_end": 0.0}}
    trainer = trainer_of("dino", data, **flags)
    term, network = trainer.objective.terms["dino"], trainer.objective.network
    pairs = [(term.prototypes.weight, term.target_prototypes.weight)]
    pairs += zip(network.parameters(), term.target_network.parameters(), strict=True)
    before = [teacher.clone() for _, teacher in pairs]
    trainer.step(next(trainer.loader.epoch(0)))
    moved = 0
    for (student, teacher), old in zip(pairs, before, strict=True):
        assert teacher.grad is None
        assert torch.allclose(teacher, 0.9 * old + 0.1 * student, atol=1e-6)
        moved += int(not torch.equal(teacher, old))
    assert moved > len(before) / 2


def test_prototypes_are_frozen_at_first(data: Data) -> None:
    flags = FLAGS | {"dino": {"prototypes": 7, "freeze_epochs": 2 / 8}}  # 8 steps per epoch: two steps
    trainer = trainer_of("dino", data, **flags)
    weights = [trainer.objective.terms["dino"].prototypes.weight.detach().clone()]
    for views in trainer.loader.epoch(0):
        trainer.step(views)
        weights.append(trainer.objective.terms["dino"].prototypes.weight.detach().clone())
    assert torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[2], weights[3])


def test_its_recipe_learns_and_does_not_collapse(data: Data) -> None:
    trainer = trainer_of("dino", data, recipe="cpu-dino", epochs=4, dino={"prototypes": 64, "freeze_epochs": 0.0})
    *_, last = losses_of_epochs(trainer, 4)
    assert last < 0.98 * math.log(64)  # all prototypes alike
    step = trainer.objective.step(next(trainer.loader.epoch(0)))
    chosen = trainer.objective.terms["dino"].teacher(step).argmax(2)
    assert len(chosen.unique()) > 3  # images are told apart
