"""Sinkhorn, the loss by hand, prototypes and queue."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from effssl.data import Data
from effssl.objectives.swav import sinkhorn
from tests.objectives.making import BATCH, first_views, make, random, trainer_of


@pytest.mark.parametrize("epsilon", [0.05, 0.03, 0.01])
def test_sinkhorn_marginals(epsilon: float) -> None:
    scores = F.normalize(random(64, 16), dim=1) @ F.normalize(random(20, 16, seed=1), dim=1).T
    q = sinkhorn(scores, epsilon, 200)
    assert torch.isfinite(q).all()
    assert torch.allclose(q.sum(1), torch.ones(64), atol=1e-5)
    assert torch.allclose(q.sum(0), torch.full((20,), 64 / 20), rtol=0.05)
    hard = sinkhorn(100 * scores, 0.01, 3)  # far beyond what exp could hold
    assert torch.isfinite(hard).all()
    assert torch.allclose(hard.sum(1), torch.ones(64), atol=1e-5)


def test_sinkhorn_equals_the_reference_form() -> None:
    """The published loop: scale to sum one, rows to 1/K, columns to 1/B, three times, then columns to one."""
    scores = random(10, 6) / 10
    q = torch.exp(scores / 0.05).T
    q /= q.sum()
    for _ in range(3):
        q /= q.sum(1, keepdim=True) * 6
        q /= q.sum(0, keepdim=True) * 10
    assert torch.allclose(sinkhorn(scores, 0.05, 3).double(), (q * 10).T, atol=1e-5)


def test_swav_by_hand_with_small_crops(data: Data) -> None:
    flags = {"views": {"small": {"count": 2, "size": 16}}, "swav": {"prototypes": 7, "freeze_epochs": 0.0}}
    objective, views = make("swav", data, **flags), first_views(data, "swav", **flags)
    assert [len(x) for x in views.pixels.values()] == [2, 2]
    assert views.pixels["small"].shape[-1] == 16
    term, network = objective.terms["swav"], objective.network
    loss = float(objective.outcomes(views)["swav"].loss)
    z = [F.normalize(network.project(x), dim=1) for x in views.pixels["large"]]
    z += F.normalize(network.project(views.pixels["small"].flatten(0, 1)), dim=1).chunk(2)  # small crops in one pass
    scores = [x @ term.prototypes.weight.T for x in z]
    expected = 0.0
    for i in (0, 1):
        q = sinkhorn(scores[i], 0.05, 3)
        for v in range(4):
            if v != i:
                expected -= float((q * (scores[v] / 0.1).log_softmax(1)).sum(1).mean()) / 3 / 2
    assert loss == pytest.approx(expected, abs=1e-4)


def test_swav_prototypes_freeze_and_stay_unit(data: Data) -> None:
    trainer = trainer_of("swav", data, swav={"freeze_epochs": 2 / 8})  # 8 steps per epoch: two steps
    weights = [trainer.objective.terms["swav"].prototypes.weight.detach().clone()]
    for views in trainer.loader.epoch(0):
        trainer.step(views)
        weights.append(trainer.objective.terms["swav"].prototypes.weight.detach().clone())
    assert torch.allclose(weights[0], weights[2], atol=1e-6)
    assert not torch.allclose(weights[2], weights[3], atol=1e-6)
    for w in weights:
        assert torch.allclose(w.norm(dim=1), torch.ones(len(w)), atol=1e-5)


@pytest.mark.parametrize("length", [10, 32, 50])  # shorter than the batch, equal, and no multiple of it
def test_swav_queue_of_any_length(data: Data, length: int) -> None:
    trainer = trainer_of("swav", data, swav={"queue": length, "queue_from": 0.0})
    term, kept = trainer.objective.terms["swav"], []
    for views in trainer.loader.epoch(0):
        trainer.step(views)
        kept.insert(0, term.recent[0])
        expected = torch.cat(kept)[:length]
        assert term.queue.shape == (2, length, trainer.objective.network.z_dim)
        assert torch.equal(term.queue[0, : len(expected)], expected)
    again = trainer_of("swav", data, swav={"queue": length, "queue_from": 0.0})
    again.restore(trainer.state())
    assert again.objective.terms["swav"].filled == term.filled == 8 * BATCH
