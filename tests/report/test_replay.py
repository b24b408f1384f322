"""The replayed batches are those of training."""

from __future__ import annotations

from pathlib import Path

import torch

import effssl
from effssl.report.replay import first_batches, trained_objective
from effssl.training.build import build_loader
from effssl.training.clock import Clock
from effssl.verbs import Run
from tests.report.conftest import SHORT


def test_views_are_those_of_training(digits: Run) -> None:
    data, cpu = digits.data(), torch.device("cpu")
    objective = trained_objective(digits, data, None, cpu)
    seen = first_batches(digits, data.train, objective, cpu)[0]
    clock = Clock.of(digits.config, len(data.train))
    trained = next(iter(build_loader(objective, data.train, cpu, clock).epoch(0)))
    assert torch.equal(seen.index, trained.index)
    assert seen.pixels.keys() == trained.pixels.keys() >= {"large", "rotated"}
    assert all(torch.equal(seen.pixels[group], trained.pixels[group]) for group in seen.pixels)


def test_growing_views_have_their_size_in_training(desk: Path, digits: Run) -> None:
    run = effssl.pretrain("digits", "byol", subset=64, schedule={"grow_from": 0.5}, out=desk / "growing", **SHORT)
    data, cpu = run.data(), torch.device("cpu")
    objective = trained_objective(run, data, None, cpu)
    seen = first_batches(run, data.train, objective, cpu)
    clock = Clock.of(run.config, len(data.train))
    assert seen[0].pixels["large"].shape[-1] < run.config.image_size
    for ours, theirs in zip(seen, build_loader(objective, data.train, cpu, clock).epoch(0), strict=True):
        assert torch.equal(ours.pixels["large"], theirs.pixels["large"])
