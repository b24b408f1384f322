"""The replayed batches are those of training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import effssl
from effssl.report.replay import first_batches, plan_of, trained_objective
from effssl.training.trainer import Trainer
from effssl.verbs import Run
from tests.report.conftest import SHORT

CPU = torch.device("cpu")


def test_views_are_those_of_training(digits: Run) -> None:
    data = digits.data()
    seen = first_batches(digits, data.train, trained_objective(digits, data, None, CPU), CPU)[0]
    trained = next(iter(Trainer(plan_of(digits), data, CPU).loader.epoch(0)))
    assert torch.equal(seen.index, trained.index)
    assert seen.pixels.keys() == trained.pixels.keys() >= {"large", "rotated"}
    assert all(torch.equal(seen.pixels[group], trained.pixels[group]) for group in seen.pixels)


@pytest.mark.parametrize("weight", [1, 4])  # with 4, an epoch has 160 images of the 64
def test_growing_views_have_their_size_in_training(tmp_path: Path, weight: int) -> None:
    images = (load_digits().images[:64] * 15).astype(np.uint8)
    np.save(tmp_path / "a.npy", images[:32])
    np.save(tmp_path / "b.npy", images[32:])
    sets = [str(tmp_path / "a.npy"), f"{weight}*{tmp_path / 'b.npy'}"]
    run = effssl.pretrain(sets, "byol", schedule={"grow_from": 0.5}, out=tmp_path / "growing", **SHORT)
    data = run.data()
    seen = first_batches(run, data.train, trained_objective(run, data, None, CPU), CPU)
    assert len(seen) == run.metrics()[-1]["step"] == 4 + 4 * weight
    assert seen[0].pixels["large"].shape[-1] < run.config.image_size
    for ours, theirs in zip(seen, Trainer(plan_of(run), data, CPU).loader.epoch(0), strict=True):
        assert torch.equal(ours.pixels["large"], theirs.pixels["large"])
