"""Terms and views in somebody else's loop: the examples run, and a plain loop computes what the trainer computes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torchvision
from PIL import Image
from torch import Tensor, nn

import effssl
from effssl.recipes import resolve
from effssl.training.pretraining import fit_to_data
from effssl.training.trainer import Trainer

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def run(example: str, *args: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example), *args], cwd=cwd, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses_in(printed: str) -> list[float]:
    return [float(text) for text in re.findall(r"^epoch .*loss (-?[\d.]+)$", printed, re.MULTILINE)]


def test_the_plain_loop_is_pretrain_with_a_constant_rate(tmp_path: Path) -> None:
    """The same loss, to the last digit that is logged, in every epoch."""
    printed = run("plain_loop.py", "--epochs", "2", "--lr", "0.1", cwd=tmp_path)
    trained = effssl.pretrain(
        "digits", "byol+rotation", epochs=2, batch_size=64, lr=0.1, quiet=True, out=tmp_path / "run",
        schedule={"warmup_epochs": 0.0, "final": 1.0},
    )  # fmt: skip
    losses = losses_in(printed)
    assert losses == [line["loss"] for line in trained.metrics() if "loss" in line]
    assert losses[1] < losses[0]
    encoder = effssl.load(tmp_path / "encoder.pth", encoder="small")
    assert encoder.fingerprint() == trained.encoder().fingerprint()


def test_lightning(tmp_path: Path, photos: Tensor) -> None:
    for i, photo in enumerate(photos[::4]):
        Image.fromarray(photo.permute(1, 2, 0).numpy()).save(tmp_path / f"{i}.png")
    arguments = ("--data", ".", "--size", "32", "--batch-size", "8", "--objective", "byol+rotation")
    printed = run("lightning_module.py", *arguments, "--epochs", "6", cwd=tmp_path)
    losses = losses_in(printed)
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    assert "12 updates: encoder.pth" in printed
    assert effssl.load(tmp_path / "encoder.pth", encoder="resnet18", image_size=32).dim == 512


def test_own_network_equals_the_named_one(tiny_photos: Tensor) -> None:
    """A module that is handed in is trained as the one of that name, to the bit."""
    settings = {"image_size": 24, "batch_size": 16, "seed": 3}
    named = effssl.objective("byol+rotation", "small", **settings)
    backbone = effssl.objective("byol", "small", **settings).network.encoder.backbone
    own = effssl.objective("byol+rotation", backbone, **settings)
    x = tiny_photos[:16].float() / 255
    for step in range(3):
        losses = []
        for objective in (named, own):
            loss, _ = objective(objective.views(x, x.flip(-1), step=step))
            objective.zero_grad()
            loss.backward()
            with torch.no_grad():
                for p in objective.parameters():
                    if p.grad is not None:
                        p -= 0.1 * p.grad
            objective.after_update((step + 1) / 3)
            losses.append(loss)
        assert torch.equal(*losses)
    assert torch.equal(backbone.conv1.weight, own.network.encoder.backbone.conv1.weight)  # it is the one that learned


def test_labels_are_those_of_the_rows(tiny_photos: Tensor) -> None:
    data = effssl.open_data("digits")
    objective = effssl.objective("supervised", "small", data, image_size=24, batch_size=16)
    x, other = tiny_photos[:16].float() / 255, (data.train.labels != data.train.labels[0]).nonzero().flatten()[:16]
    by_rows = [objective(objective.views(x, step=0, index=rows))[0].item() for rows in (torch.arange(16), other)]
    assert by_rows[0] != by_rows[1]
    with pytest.raises(effssl.RequestError, match="these terms read labels: give index"):
        objective.views(x, step=0)


def test_rotations_differ_from_step_to_step(tiny_photos: Tensor) -> None:
    objective = effssl.objective(
        "rotation",
        "small",
        image_size=24,
        batch_size=16,
        views={"large": {"count": 2}, "rotated": {"count": 2, "every_angle": False}},
    )
    x = tiny_photos[:16].float() / 255
    first, again, second = (objective(objective.views(x, x, step=step))[0].item() for step in (0, 0, 1))
    assert first == again != second


def test_views_are_the_trainers(tmp_path: Path) -> None:
    data = effssl.open_data("digits")
    flags = {"batch_size": 32, "epochs": 2, "schedule": {"grow_from": 0.5}}
    objective = effssl.objective("byol+rotation", data=data, **flags)
    plan = fit_to_data(resolve(flags | {"data": "digits", "objective": "byol+rotation"}), data)
    trainer = Trainer(plan, data, torch.device("cpu"))
    ours, theirs = effssl.view_loader(objective, data), trainer.loader
    for a, b, _ in zip(ours.epoch(1), theirs.epoch(1), range(3), strict=False):
        assert a.pixels.keys() == b.pixels.keys()
        assert all(torch.equal(x, b.pixels[name]) for name, x in a.pixels.items())
        assert (a.step, a.total) == (b.step, b.total)


def test_requests_that_cannot_be_met(tiny_photos: Tensor) -> None:
    with pytest.raises(effssl.RequestError, match="size of the views is not known"):
        effssl.objective("byol")
    with pytest.raises(effssl.RequestError, match="did you mean rotation"):
        effssl.objective("byol+rotatoin", image_size=32)
    with pytest.raises(effssl.RequestError, match=r"Conv2d gives features of shape \(2, 4, 30, 30\)"):
        effssl.objective("byol", nn.Conv2d(3, 4, 3), image_size=32)
    with pytest.raises(effssl.RequestError, match="Linear does not take images of 32×32"):
        effssl.objective("byol", nn.Linear(3, 4), image_size=32)
    objective = effssl.objective("byol+jigsaw", "small", image_size=64, batch_size=8)
    with pytest.raises(effssl.RequestError, match="byol \\+ jigsaw needs the clean image"):
        objective.views(tiny_photos[:8].float(), tiny_photos[:8].float(), step=0)
    with pytest.raises(effssl.RequestError, match="larger than the set of 1437"):
        effssl.view_loader(effssl.objective("byol", image_size=16, batch_size=2000), "digits")
    with pytest.raises(effssl.RequestError, match="labels"):
        effssl.objective("supervised", torchvision.models.squeezenet1_0(), image_size=64, batch_size=8)
