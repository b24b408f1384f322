"""InfoNCE, the queue, and keys in shuffled groups."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from effssl.data import Data
from effssl.objectives.moco import info_nce
from effssl.runtime.errors import RequestError
from tests.objectives.making import BATCH, ONE_SIDED, first_views, losses_of_epochs, make, random, trainer_of


def test_info_nce_equals_the_loop() -> None:
    q, k, queue = (F.normalize(random(n, 5, seed=n), dim=1) for n in (6, 7, 9))
    k = k[:6]
    total = 0.0
    for a in range(6):
        positive = math.exp(float(q[a] @ k[a]) / 0.1)
        total -= math.log(positive / (positive + sum(math.exp(float(q[a] @ n) / 0.1) for n in queue)))
    assert float(info_nce(q, k, queue, 0.1)) == pytest.approx(total / 6, abs=1e-9)


def test_moco_queue_is_first_in_first_out(data: Data) -> None:
    trainer = trainer_of("moco", data, moco={"queue": 100, "momentum": 0.9})
    term = trainer.objective.terms["moco"]
    expected = list(term.queue)
    for views in trainer.loader.epoch(0):
        trainer.step(views)
        for key in term.recent:
            expected.append(key)
            expected.pop(0)
        start = int(term.position)
        assert torch.equal(torch.cat([term.queue[start:], term.queue[:start]]), torch.stack(expected))
    assert all(p.grad is None for p in term.target_network.parameters())


def test_moco_keys_are_shuffled_in_groups_and_come_back_in_order(data: Data) -> None:
    objective, views = make("moco", data), first_views(data, "moco")
    term = objective.terms["moco"]
    seen = []
    term.target_network.encoder.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    x, step = views.pixels["large"][0], objective.step(views)
    grouped = term.keys(step, x, 0)
    assert [len(x) for x in seen] == [BATCH // 8] * 8
    assert not torch.equal(torch.cat(seen), x)
    term.target_network.eval()  # with fixed statistics, grouping must not matter
    plain = F.normalize(term.target_network.project(x), dim=1)
    assert torch.allclose(term.keys(step, x, 0), plain, atol=1e-5)
    assert not torch.allclose(grouped, plain, atol=1e-3)


@pytest.mark.parametrize("symmetric", [True, False])
def test_moco_tells_images_apart(data: Data, symmetric: bool) -> None:
    """Its loss first rises, while random keys leave the queue; what counts is that it ends far below chance."""
    views = {} if symmetric else ONE_SIDED | {"rotated": {"count": 1}}
    trainer = trainer_of("moco+0.1*rotation", data, views=views, moco={"queue": 64, "key_bn_groups": 2})
    *_, last = losses_of_epochs(trainer, 3, "loss/moco")
    assert last < 0.9 * math.log(65) * (2 if symmetric else 1)


def test_moco_groups_must_divide_the_batch(data: Data) -> None:
    with pytest.raises(RequestError, match="does not divide"):
        make("moco", data, moco={"key_bn_groups": 5})
