"""What makes a pretext task cheaper: fewer images, fewer steps, smaller views, less of the network."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import effssl
from effssl.augment.rotate import rotate_quarters
from effssl.data import ArrayImages, Data
from effssl.objectives.objective import Step
from effssl.runtime.errors import RequestError
from effssl.training import loop
from tests.objectives.making import BATCH, SIZE, make, plan, some_views


def batches_seen(objective) -> list[torch.Size]:
    seen: list[torch.Size] = []
    objective.network.encoder.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))
    return seen


def test_a_share_of_the_batch_is_rotated(tiny_photos: Tensor) -> None:
    objective = make("byol+rotation", rotation={"size": 0, "share": 0.25})
    seen, views = batches_seen(objective), some_views(tiny_photos)
    outcome = objective.outcomes(views)["rotation"]
    assert seen[-1][0] == 2 * BATCH // 4
    rows = torch.arange(3, BATCH, 4)  # evenly over the batch, so that every process has as many
    turns = torch.randint(4, (2, BATCH), generator=views.generator("angles"))[:, rows]
    network, head = objective.network, objective.terms["rotation"].r
    x = rotate_quarters(torch.cat([view[rows] for view in views.large]), turns.reshape(-1))
    expected = F.cross_entropy(head(network.g(network.f(x))), turns.reshape(-1))
    assert float(outcome.loss) == pytest.approx(float(expected), abs=1e-5)


def test_shares_of_two_processes_are_the_share_of_the_batch() -> None:
    term = make("byol+rotation", rotation={"share": 0.3}).terms["rotation"]
    whole = term.chosen(replace(some_views(torch.zeros(BATCH, 3, SIZE, SIZE)), total=30, rows=slice(None)))
    views = some_views(torch.zeros(BATCH, 3, SIZE, SIZE))
    halves = [term.chosen(replace(views, total=30, rows=slice(start, start + 15))) + start for start in (0, 15)]
    assert torch.equal(whole, torch.cat(halves))
    assert len(whole) == 9


def test_parts_of_a_batch_add_up_to_the_share_of_it(tiny_photos: Tensor) -> None:
    """Computed in parts, the rotated share weighs what it weighs in one go (eval mode: no batch statistics)."""
    data, losses = Data("photos", ArrayImages(tiny_photos)), []
    for parts in (1, 2):
        settings = plan("byol+rotation", rotation={"share": 0.25}, accumulate=parts)
        trainer = loop.Trainer(settings, data, torch.device("cpu"))
        trainer.objective.eval()
        views = next(trainer.loader.epoch(0)).parts(parts)
        losses.append(sum(float(trainer.objective.outcomes(part)["rotation"].loss) for part in views) / parts)
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.parametrize(("objective", "flags"), [
    ("rotation", {"rotation": {"scale": [0.5, 1.0], "size": 0}}), ("jigsaw", {"image_size": 64}),
])  # fmt: skip
def test_a_task_alone_that_reads_none_of_the_usual_views(objective: str, flags: dict, tiny_photos: Tensor) -> None:
    trainer = loop.Trainer(plan(objective, **flags), Data("photos", ArrayImages(tiny_photos)), torch.device("cpu"))
    views = next(trainer.loader.epoch(0))
    assert views.large == []
    assert torch.isfinite(trainer.step(views)[0])


def test_every_second_step_until_half_of_the_run(tiny_photos: Tensor) -> None:
    objective = make("byol+rotation", rotation={"every": 2, "until": 0.5})
    seen = batches_seen(objective)
    passes = []
    for step in range(8):
        total, metrics = objective(replace(some_views(tiny_photos, step), done=step / 8))
        objective.zero_grad()
        total.backward()
        assert all(p.grad is not None for p in objective.terms["rotation"].parameters())  # every process sends as much
        passes.append(len(seen))
        assert ("rotation_accuracy" in metrics) == (step in (0, 2))
        seen.clear()
    assert passes == [3, 2, 3, 2, 2, 2, 2, 2]


def test_the_weight_falls_by_a_cosine(tiny_photos: Tensor) -> None:
    objective = make("byol + 0.8*rotation", rotation={"weight_end": 0.25})
    for step, factor in ((0, 1.0), (2, 0.625), (3, 0.25 + 0.75 * (1 + math.cos(0.75 * math.pi)) / 2)):
        total, metrics = objective(replace(some_views(tiny_photos, step), done=step / 4))
        expected = metrics["loss/byol"] + 0.8 * factor * metrics["loss/rotation"]
        assert float(total.detach()) == pytest.approx(float(expected), abs=1e-5)


def test_own_crops_of_a_given_scale(tiny_photos: Tensor) -> None:
    data = Data("photos", ArrayImages(tiny_photos))
    plain = loop.Trainer(plan("byol+rotation"), data, torch.device("cpu"))
    trainer = loop.Trainer(plan("byol+rotation", rotation={"scale": [0.5, 0.9], "size": 12}), data, torch.device("cpu"))
    seen = batches_seen(trainer.objective)
    views, others = next(trainer.loader.epoch(0)), next(plain.loader.epoch(0))
    assert [view.shape[-1] for view in views.own] == [12, 12]
    assert others.own == []
    for a, b in zip(views.large, others.large, strict=True):
        assert torch.equal(a, b)  # nobody else's views change
    trainer.objective(views)
    assert [shape[-1] for shape in seen] == [SIZE, SIZE, 12]
    turns = torch.randint(4, (2, BATCH), generator=views.generator("angles")).reshape(-1)
    rotated = trainer.objective.terms["rotation"]._rotated(Step(trainer.objective.network, views), turns)
    assert torch.equal(rotated, rotate_quarters(torch.cat(views.own), turns))


@pytest.mark.parametrize(("on", "stages"), [("block1", 2), ("block3", 4)])
def test_an_early_exit_computes_no_further(tiny_photos: Tensor, on: str, stages: int) -> None:
    objective = make("byol+rotation", rotation={"on": on, "size": 0})
    views = some_views(tiny_photos)
    loss = objective.outcomes(views)["rotation"].loss
    turns = torch.randint(4, (2, BATCH), generator=views.generator("angles")).reshape(-1)
    x = rotate_quarters(torch.cat(views.large), turns)
    logits = objective.terms["rotation"].r(objective.network.run(x, stop=stages).mean((2, 3)))
    assert float(loss) == pytest.approx(float(F.cross_entropy(logits, turns)), abs=1e-5)
    objective.zero_grad()
    loss.backward()
    assert objective.network.encoder.backbone.layer1[0].conv1.weight.grad is not None
    assert objective.network.encoder.backbone.layer4[0].conv1.weight.grad is None


def test_a_run_whose_task_sits_out_steps_is_logged_and_resumed_to_the_bit(tmp_path, monkeypatch) -> None:
    settings = {"epochs": 2, "quiet": True, "form": "paper", "batch_size": 64, "subset": 512, "checkpoint_every": 1}
    options = {"every": 3, "share": 0.5, "weight_end": 0.1, "until": 0.8}
    whole = effssl.pretrain("digits", "byol+rotation", out=tmp_path / "whole", rotation=options, **settings)
    real, calls = loop.Trainer.step, []

    def cut(self, views):
        calls.append(views.step)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(self, views)

    monkeypatch.setattr(loop.Trainer, "step", cut)
    with pytest.raises(KeyboardInterrupt):
        effssl.pretrain("digits", "byol+rotation", out=tmp_path / "cut", rotation=options, **settings)
    again = effssl.pretrain(
        "digits", "byol+rotation", out=tmp_path / "cut", resume="auto", rotation=options, **settings
    )
    assert again.encoder_path.read_bytes() == whole.encoder_path.read_bytes()
    for a, b in zip(whole.metrics(), again.metrics(), strict=True):
        assert a | {"seconds": 0} == b | {"seconds": 0}
    plain = effssl.pretrain("digits", "byol", out=tmp_path / "plain", **settings)
    every = effssl.pretrain("digits", "byol+rotation", out=tmp_path / "every", rotation={"share": 0.5}, **settings)
    costs = [run.metrics()[-1]["flops"] for run in (plain, whole, every)]
    with_task = sum(step % 3 == 0 and step < 0.8 * 16 for step in range(16)) / 16
    assert (costs[1] - costs[0]) / (costs[2] - costs[0]) == pytest.approx(with_task)  # only steps with the task cost it
    # Steps without the task count for nothing: were they zeros, two thirds of them would pull the mean far below.
    assert whole.metrics()[1]["loss/rotation"] > 0.7 * math.log(4)


def test_what_does_not_go_together_is_refused() -> None:
    for message, objective, options in (
        ("stands alone", "rotation", {"every": 2}),
        ("0 0", "byol+rotation", {"scale": [0.9, 0.5]}),
        ("leaves fewer than two", "byol+rotation", {"share": 0.05}),
        ("form ce", "byol+rotation", {"share": 0.5, "form": "supcon"}),
        ("needs a ResNet", "byol+rotation", {"on": "block2", "shared": 2}),
    ):
        with pytest.raises(RequestError, match=message):
            make(objective, rotation=options)
    with pytest.raises(RequestError, match=r"rotation\.share"):
        plan("byol+rotation", rotation={"share": 0.0})
