"""Averaged weights by hand, and that evaluations, checkpoints and the finished encoder have them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import effssl
from effssl.data import ArrayImages, Data
from effssl.runtime.errors import RequestError
from effssl.training.checkpoint import load_checkpoint
from effssl.training.health import Monitor
from tests.objectives.making import trainer_of

QUICK = {"quiet": True, "encoder": "tiny", "batch_size": 64, "subset": 512, "epochs": 2, "report": False}


@pytest.fixture(scope="module")
def data(tiny_photos: Tensor) -> Data:
    return Data("photos", ArrayImages(tiny_photos, torch.arange(256) % 4, list("abcd")))


def test_the_average_by_hand(data: Data) -> None:
    trainer = trainer_of("byol+rotation", data, ema=0.6)
    names = (
        "network.encoder.backbone.conv1.weight",
        "network.encoder.backbone.bn1.running_var",
        "terms.rotation.r.0.weight",
    )
    expected = {name: trainer.objective.state_dict()[name].clone() for name in names}
    start = dict(expected)
    for n, views in enumerate(trainer.loader.epoch(0), start=1):
        trainer.step(views)
        decay = min(0.6, (1 + n) / (10 + n))
        now = trainer.objective.state_dict()
        expected = {name: decay * old + (1 - decay) * now[name] for name, old in expected.items()}
    for name in names:
        assert torch.allclose(trainer.average.average[name], expected[name], atol=1e-6)
        assert not torch.allclose(start[name], expected[name], atol=1e-5)
    assert not any("target" in name for name in trainer.average.average)  # a momentum copy is an average already


def test_training_is_the_same_with_and_without(data: Data) -> None:
    plain, averaged = trainer_of("simclr", data), trainer_of("simclr", data, ema=0.9)
    for views in plain.loader.epoch(0):
        plain.step(views)
        averaged.step(views)
        with averaged.averaged():
            inside = averaged.objective.network.encoder.backbone.conv1.weight.clone()
    for a, b in zip(plain.objective.state_dict().values(), averaged.objective.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(inside, averaged.objective.network.encoder.backbone.conv1.weight)


def test_evaluations_read_the_average(data: Data) -> None:
    trainer = trainer_of("simclr", data, ema=0.9)
    monitor = Monitor(trainer)
    for views in trainer.loader.epoch(0):
        trainer.step(views)
    own = monitor.measure(trainer.objective.network)
    found = monitor.evaluate()
    with trainer.averaged():
        averaged = monitor.measure(trainer.objective.network)
    assert found["rank_h"] == round(averaged.rank_h, 4) != round(own.rank_h, 4)


def test_the_finished_encoder_its_projector_and_classifier_are_averages(tmp_path: Path) -> None:
    run = effssl.pretrain(
        "digits", "supervised+rotation", ema=0.95, projector={"layers": 2}, out=tmp_path / "r", **QUICK
    )
    state = load_checkpoint(run.checkpoint_path)
    average, weights = state["average"], load_file(run.encoder_path)
    for key in ("conv1.weight", "bn1.running_mean"):
        assert torch.equal(weights[key], average[f"network.encoder.backbone.{key}"])
        assert not torch.equal(weights[key], state["objective"][f"network.encoder.backbone.{key}"])
    projector = run.encoder(projector=True).projector
    assert torch.equal(projector[0].weight, average["network.projector.0.weight"])
    assert torch.equal(run.classifier().weight, average["terms.supervised.classifier.weight"])
    assert run.report().is_file()


def test_a_decay_of_1_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"ema is 1.0; it must be between 0 and 0.99999"):
        effssl.pretrain("digits", "byol", ema=1.0, out=tmp_path / "r", **QUICK)


def test_the_gradient_is_clipped_to_its_norm_over_all_weights(data: Data) -> None:
    plain, clipped = (trainer_of("byol+rotation", data, optimizer={"clip_norm": norm}) for norm in (0.0, 0.5))
    views = next(plain.loader.epoch(0))
    plain.step(views)
    clipped.step(views)
    pairs = list(zip(plain.objective.parameters(), clipped.objective.parameters(), strict=True))
    grads = [(a.grad, b.grad) for a, b in pairs if a.grad is not None]
    norm = torch.cat([a.flatten() for a, _ in grads]).norm()
    assert norm > 0.6
    for a, b in grads:
        assert torch.allclose(b, a * 0.5 / norm, rtol=1e-3, atol=1e-7)
