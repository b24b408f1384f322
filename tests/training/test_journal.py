"""The journal: event files hold what metrics.jsonl holds, also after a resume; a line says how tasks are doing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import effssl
from effssl.runtime.errors import RequestError
from effssl.training.journal import TensorBoardWriter


def test_the_same_figures(tmp_path: Path) -> None:
    run = effssl.pretrain("digits", "byol", subset=64, epochs=2, batch_size=32, health={"every": 1}, quiet=True,
                          tensorboard=True, out=tmp_path / "run")  # fmt: skip
    events = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    lines = run.metrics()
    assert {"loss", "loss/byol", "lr", "knn", "std_h", "rank_h"} <= set(events.Tags()["scalars"])
    assert [(e.step, e.value) for e in events.Scalars("knn")] == [
        (line.get("step", 0), pytest.approx(line["knn"])) for line in lines
    ]
    assert len(events.Scalars("loss")) == 2


def test_a_resumed_run_replaces_what_it_does_again(tmp_path: Path) -> None:
    for loss in (1.0, 2.0):
        events = TensorBoardWriter(tmp_path / "tensorboard")
        for step in (5, 10) if loss == 1 else (10, 15):
            events.write({"epoch": step, "step": step, "loss": loss})
        events.close()
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("loss")
    assert [(e.step, e.value) for e in found] == [(5, 1.0), (10, 2.0), (15, 2.0)]


def test_without_tensorboard_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(RequestError, match="pip install tensorboard"):
        effssl.pretrain("digits", "byol", subset=64, epochs=1, tensorboard=True, quiet=True, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
