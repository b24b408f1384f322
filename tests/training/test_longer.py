"""Runs that are trained longer, and runs that are used before they are finished."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import effssl
from effssl.cli import main
from effssl.config import Schedule
from effssl.training.clock import Clock
from effssl.training.trainer import Trainer

QUICK = {"encoder": "small-4", "batch_size": 64, "subset": 512, "quiet": True, "report": False}


def test_a_restart_is_a_second_run_of_the_schedule() -> None:
    clock = Clock(0.1, Schedule(warmup_epochs=0, restarts=(2,), grow_from=0.5), 32, 10, 50)
    first = Clock(0.1, Schedule(warmup_epochs=0, grow_from=0.5), 32, 10, 20)
    second = Clock(0.1, Schedule(warmup_epochs=0), 32, 10, 30)
    assert [clock.learning_rate(step) for step in range(20)] == [first.learning_rate(step) for step in range(20)]
    assert [clock.learning_rate(step + 20) for step in range(30)] == [second.learning_rate(step) for step in range(30)]
    assert [clock.progress(step) for step in range(21)] == [first.progress(step) for step in range(21)]
    assert [clock.progress(step + 20) for step in range(1, 31)] == [second.progress(step) for step in range(1, 31)]
    assert [clock.side(step) for step in range(20)] == [first.side(step) for step in range(20)]
    assert {clock.side(step) for step in range(20, 50)} == {32}  # views do not shrink again


def test_a_finished_run_that_is_trained_longer_equals_one_with_a_restart(
    tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, also if it is stopped on the way."""
    schedule = {"warmup_epochs": 0.2, "restarts": (2,)}
    whole = effssl.pretrain("digits", "byol+rotation", epochs=4, schedule=schedule, out=tmp_path / "whole", **QUICK)
    run = effssl.pretrain("digits", "byol+rotation", epochs=2, out=tmp_path / "longer", **QUICK)
    assert run.config.schedule.warmup_epochs == 0.2
    short = run.knn()
    real, calls = Trainer.step, 0

    def dies_in_the_third_epoch(self, batch):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return real(self, batch)

    monkeypatch.setattr(Trainer, "step", dies_in_the_third_epoch)
    with pytest.raises(KeyboardInterrupt):
        run.extend(4)
    monkeypatch.setattr(Trainer, "step", real)
    assert not run.finished
    again = effssl.pretrain(
        "digits", "byol+rotation", epochs=4, out=run.folder, resume="auto", **QUICK | {"quiet": False}
    )
    assert "resuming after epoch 2 of 4" in capfd.readouterr().err
    a, b = load_file(whole.encoder_path), load_file(again.encoder_path)
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert [line["epoch"] for line in again.metrics()] == [0, 1, 2, 3, 4]
    assert again.config == whole.config
    assert again.results()["knn epochs=2"]["value"] == short.value  # a score stays that of its encoder
    assert "knn" not in again.results()


def test_the_command_line_needs_the_folder_alone(in_tmp: Path, capfd: pytest.CaptureFixture) -> None:
    effssl.pretrain("digits", "simclr", epochs=1, out="r", **QUICK)
    main(["pretrain", "--out", "r", "--resume", "auto", "--epochs", "2", "--no-report"])
    said = capfd.readouterr().err
    assert "trained longer: 1 epochs become 2, with a warm restart of the schedule" in said
    assert effssl.Run("r").config.schedule.restarts == (1,)
    main(["pretrain", "--out", "r", "--resume", "auto"])
    assert "r is finished" in capfd.readouterr().err


def test_what_cannot_be_trained_longer(in_tmp: Path) -> None:
    run = effssl.pretrain("digits", "simclr", epochs=2, out="r", **QUICK)
    with pytest.raises(effssl.RequestError, match="epochs: 2 → 1"):
        run.extend(1)
    with pytest.raises(effssl.RequestError, match=r"lr: .* → 0.5"):
        effssl.pretrain("digits", "simclr", epochs=3, lr=0.5, out="r", resume="auto", **QUICK)
    for path in run.folder.glob("checkpoint*.pt"):
        path.unlink()
    with pytest.raises(effssl.RequestError, match="no checkpoint to train on from; use start_from="):
        run.extend(3)
    assert run.finished


def test_a_stopped_run_is_of_use(in_tmp: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Trainer.end_epoch

    def dies_in_the_second_epoch(self):
        if self.position.epoch == 1:
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(Trainer, "end_epoch", dies_in_the_second_epoch)
    with pytest.raises(KeyboardInterrupt):
        effssl.pretrain("digits", "simclr", epochs=3, out="r", **QUICK)
    capfd.readouterr()
    note = "r is not finished: this is its encoder after epoch 1 of 3"
    main(["eval", "knn", "r"])
    main(["embed", "r", "--data", "digits", "--out", "f.npz"])
    main(["neighbors", "r", "--data", "digits", "--query", "3", "--k", "2"])
    main(["export", "r", "--to", "safetensors", "--out", "e.safetensors"])
    assert capfd.readouterr().err.count(note) == 4
    assert "| epochs | epoch 1 of 3: the run was not finished |" in Path("e.safetensors.md").read_text()
    first, *baselines = effssl.Run("r").results()
    assert first == "knn epochs=1"
    assert baselines
    assert all(name.endswith(" epochs=1") for name in baselines)
    images = effssl.open_data("digits").test.pixels[:4]
    torch.testing.assert_close(effssl.load("e.safetensors")(images), effssl.load("r")(images))
    started = effssl.pretrain("digits", "simclr", epochs=1, out="on", start_from="r", **QUICK)
    assert started.config.start_digest == effssl.load("r").fingerprint()
