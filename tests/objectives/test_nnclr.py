"""Neighbors and loss by loops, and the queue."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from effssl.data import Data
from tests.objectives.making import BATCH, first_views, losses_of_epochs, make, trainer_of

FLAGS = {"recipe": "cpu-nnclr", "nnclr": {"queue": 50, "temperature": 0.2, "predictor_hidden": 32}}


def nnclr_by_loop(p: torch.Tensor, z: torch.Tensor, queue: torch.Tensor, temperature: float) -> float:
    """The mean over images i of −log exp(n_i·p_i/τ) / Σ_k exp(n_i·p_k/τ), n_i the neighbor of z_i."""
    total = 0.0
    for i in range(len(z)):
        cosines = [float(F.cosine_similarity(z[i], row, dim=0)) for row in queue]
        neighbor = queue[cosines.index(max(cosines))]
        scores = [math.exp(float(F.cosine_similarity(neighbor, one, dim=0)) / temperature) for one in p]
        total -= math.log(scores[i] / sum(scores))
    return total / len(z)


@pytest.mark.parametrize("small", [0, 2], ids=["two views", "multi-crop"])
def test_the_loss_by_loops(data: Data, small: int) -> None:
    flags = FLAGS | {"views": {"small": {"count": small, "size": 16, "joint_pass": False}}}
    objective, views = make("nnclr", data, **flags), first_views(data, "nnclr", **flags)
    term = objective.terms["nnclr"]
    loss = float(objective.outcomes(views)["nnclr"].loss.detach())
    z = objective.step(views).online().detach()
    p = torch.stack([term.q(view) for view in z]).detach()
    pairs = [(v, t) for v in range(2 + small) for t in range(2) if v != t]
    expected = sum(nnclr_by_loop(p[v], z[t], term.queue, 0.2) for v, t in pairs) / len(pairs)
    assert loss == pytest.approx(expected, abs=1e-4)


def test_no_gradient_goes_through_neighbors(data: Data) -> None:
    """The gradient is that of the predictions alone: the same neighbors as constants give the same one."""
    flags = FLAGS | {"views": {"large": {"count": 1, "target": False}, "target": {"count": 1}}}
    objective, views = make("nnclr", data, **flags), first_views(data, "nnclr", **flags)
    objective.outcomes(views)["nnclr"].loss.backward()
    term, step = objective.terms["nnclr"], objective.step(views)
    assert not term.recent.requires_grad
    assert step.targets().requires_grad is False
    assert float(objective.network.encoder.backbone.conv1.weight.grad.abs().sum()) > 0


@pytest.mark.parametrize("length", [10, 32, 50])  # shorter than the batch, equal, and no multiple of it
def test_the_queue_holds_the_first_target_view_first_in_first_out(data: Data, length: int) -> None:
    flags = FLAGS | {"nnclr": {"queue": length, "predictor_hidden": 32}}
    trainer = trainer_of("nnclr", data, **flags)
    term = trainer.objective.terms["nnclr"]
    expected = list(term.queue)
    for views in trainer.loader.epoch(0):
        trainer.step(views)
        assert term.recent.shape == (BATCH, trainer.objective.network.z_dim)
        expected = (expected + list(term.recent))[-length:]
        start = int(term.position)
        assert torch.equal(torch.cat([term.queue[start:], term.queue[:start]]), torch.stack(expected))
    assert torch.allclose(term.queue.norm(dim=1), torch.ones(length), atol=1e-5)
    again = trainer_of("nnclr", data, **flags)
    again.restore(trainer.state())
    assert torch.equal(again.objective.terms["nnclr"].queue, term.queue)


def test_its_recipe_learns(data: Data) -> None:
    trainer = trainer_of("nnclr", data, recipe="cpu-nnclr", epochs=4, nnclr={"queue": 128})
    *_, last = losses_of_epochs(trainer, 4)
    assert last < 0.95 * math.log(BATCH)  # chance
