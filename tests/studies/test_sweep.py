"""Settings are tried on validation images only; what is done is not done again, what falls behind is ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import effssl
from effssl.cli import main
from effssl.run import Run
from effssl.runtime.errors import RequestError
from effssl.studies.sweep import Trial, grid, parse_range, run_sweep

FLAGS = {"data": "digits", "objective": "byol+rotation", "epochs": 3, "subset": 200, "batch_size": 32}


@pytest.mark.parametrize("text", ["lr", "lr=", "=1", "lr=2:1", "lr=0:1:log", "lr=a:b", "lr=1:2:3"])
def test_what_cannot_be_tried(text: str) -> None:
    with pytest.raises(RequestError, match="--over"):
        parse_range(text)


def test_a_grid_is_every_combination() -> None:
    ranges = [parse_range("lr=0.1,0.2"), parse_range("rotation.weight=0,1")]
    assert list(grid(ranges)) == [
        {"lr": lr, "rotation.weight": weight} for lr in (0.1, 0.2) for weight in (0, 1)
    ]  # fmt: skip
    with pytest.raises(RequestError, match="optuna"):
        list(grid([parse_range("lr=0.1:0.2")]))


def test_settings_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="unknown key 'lrr'"):
        Trial(FLAGS, {"lrr": 1}, tmp_path)
    with pytest.raises(RequestError, match="lr"):
        Trial(FLAGS, {"lr": -1.0}, tmp_path)


def test_a_grid_runs_once_and_names_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "some.yaml").write_text("subset: 200\nbatch_size: 64\n")
    args = ["sweep", "--data", "digits", "--objective", "byol+rotation", "--epochs", "1", "--batch-size", "32"]
    args += ["--config", str(tmp_path / "some.yaml"), "--over", "lr=0.2,1e30", "--out", str(tmp_path)]
    main(args)
    assert "best: --lr 0.2" in capsys.readouterr().out
    found = json.loads((tmp_path / "results.json").read_text())
    assert [one["state"] for one in found] == ["finished", "failed"]
    assert "not finite" in found[1]["why"]
    encoder = next(tmp_path.glob("trials/*/encoder.safetensors"))
    config = effssl.Run(encoder.parent).config
    assert (config.subset, config.batch_size) == (200, 32)  # a file's settings, and flags over them
    before = encoder.stat().st_mtime_ns
    main(args)
    assert encoder.stat().st_mtime_ns == before


def test_what_is_tried_wins_over_what_is_usual(tmp_path: Path) -> None:
    few, many = (Trial(FLAGS, {"health.bank": n}, tmp_path) for n in (8, 16))
    assert few.flags["health"] == {"every": 1, "bank": 8}
    assert few.folder != many.folder
    assert parse_range("rotation.angles=[0,90],[0,180]").values == ([0, 90], [0, 180])
    with pytest.raises(RequestError, match="not a value"):
        parse_range("lr=[1")


def test_trials_end_with_a_sweep_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "effssl", "sweep", "--data", "digits", "--epochs", "1000", "--over", "lr=0.2"]
    sweep = subprocess.Popen([*command, "--out", str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def trials() -> list[str]:
        files = Path("/proc").glob("[0-9]*/cmdline")
        return [p.name for p in files if f"{tmp_path}/trials/".encode() in _content(p)]

    _until(lambda: any(tmp_path.glob("trials/*/config.yaml")))
    assert trials()
    sweep.send_signal(signal.SIGKILL)
    sweep.wait()
    _until(lambda: not trials())


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it has just ended
        return b""


def _until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def test_a_trial_behind_the_others_is_ended(tmp_path: Path) -> None:
    flags = FLAGS | {"form": "paper", "rotation": {"size": 0.5, "update_stats": False}}
    trials = [Trial(flags, {"lr": lr}, tmp_path) for lr in (0.1, 0.2, 0.3, 1e-9)]
    for trial in trials:
        effssl.pretrain(**trial.flags, out=trial.folder, quiet=True)
        trial.keep("finished")
    *good, bad = trials
    metrics = bad.folder / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()[:-1]]  # as if it were still running
    lines[-1]["knn"] = min(line["knn"] for trial in good for line in Run(trial.folder).metrics()) - 1  # and lagging
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "the median of 3 others" in bad._behind(good)
    assert bad._behind(good[:2]) == ""  # too few to compare with
    assert good[0]._behind([bad]) == ""


def test_optuna_searches_ranges_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    flags = FLAGS | {"epochs": 1}
    first = run_sweep(flags, [parse_range("lr=0.01:1:log")], tmp_path, "optuna", 1)
    again = run_sweep(flags, [parse_range("lr=0.01:1:log")], tmp_path, "optuna", 2)
    assert {t.folder for t in first} < {t.folder for t in again}
    assert all(0.01 <= t.tried["lr"] <= 1 and t.score is not None for t in again)


def test_images_without_labels(tmp_path: Path) -> None:
    import numpy as np

    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 255, (64, 16, 16, 3), dtype=np.uint8))
    command = [sys.executable, "-m", "effssl", "sweep", "--data", str(tmp_path / "x.npy"), "--epochs", "1"]
    command += ["--batch-size", "16", "--over", "lr=0.1", "--jobs", "1", "--out", str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no labels" in done.stderr.splitlines()[-1]
