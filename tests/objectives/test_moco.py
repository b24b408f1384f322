"""InfoNCE, the queue, and keys in shuffled groups."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from effssl.data import Data
from effssl.objectives.moco import info_nce
from effssl.objectives.objective import Step
from effssl.runtime.errors import RequestError
from effssl.training.loop import Trainer
from tests.objectives.making import BATCH, CPU, first_views, make, plan, random


def test_info_nce_equals_the_loop() -> None:
    q, k, queue = (F.normalize(random(n, 5, seed=n), dim=1) for n in (6, 7, 9))
    k = k[:6]
    total = 0.0
    for a in range(6):
        positive = math.exp(float(q[a] @ k[a]) / 0.1)
        total -= math.log(positive / (positive + sum(math.exp(float(q[a] @ n) / 0.1) for n in queue)))
    assert float(info_nce(q, k, queue, 0.1)) == pytest.approx(total / 6, abs=1e-9)


def test_moco_queue_is_first_in_first_out(data: Data) -> None:
    trainer = Trainer(plan("moco", moco={"queue": 100, "momentum": 0.9}), data, CPU)
    term = trainer.objective.terms["moco"]
    expected = list(term.queue)
    for views in trainer.loader.epoch(0):
        trainer.step(views)
        for key in term.recent:
            expected.append(key)
            expected.pop(0)
        start = int(term.position)
        assert torch.equal(torch.cat([term.queue[start:], term.queue[:start]]), torch.stack(expected))
    assert all(p.grad is None for p in term.target.parameters())


def test_moco_keys_are_shuffled_in_groups_and_come_back_in_order(data: Data) -> None:
    objective, views = make("moco", data), first_views(data, "moco")
    term = objective.terms["moco"]
    seen = []
    term.target.encoder.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    grouped = term.keys(Step(objective.network, views), views.large[0], "x")
    assert [len(x) for x in seen] == [BATCH // 8] * 8
    assert not torch.equal(torch.cat(seen), views.large[0])
    term.target.eval()  # with fixed statistics, grouping must not matter
    plain = F.normalize(term.target.g(term.target.f(views.large[0])), dim=1)
    assert torch.allclose(term.keys(Step(objective.network, views), views.large[0], "x"), plain, atol=1e-5)
    assert not torch.allclose(grouped, plain, atol=1e-3)


@pytest.mark.parametrize("symmetric", [True, False])
def test_moco_tells_images_apart(data: Data, symmetric: bool) -> None:
    """Its loss first rises, while random keys leave the queue; what counts is that it ends far below chance."""
    options = {"queue": 64, "key_bn_groups": 2, "symmetric": symmetric}
    trainer = Trainer(plan("moco+0.1*rotation", moco=options), data, CPU)
    for epoch in range(3):
        losses = [float(trainer.step(views)[1]["loss/moco"]) for views in trainer.loader.epoch(epoch)]
    chance = math.log(65) * (2 if symmetric else 1)
    assert sum(losses) / len(losses) < 0.9 * chance


def test_moco_groups_must_divide_the_batch(data: Data) -> None:
    with pytest.raises(RequestError, match="does not divide"):
        make("moco", data, moco={"key_bn_groups": 5})
