"""A sweep compares settings on validation images; finished trials are not repeated, poor ones are pruned."""

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
from effssl.runtime.errors import RequestError
from effssl.studies.sweep import Range, Search, Trial, create_study, grid, parse_range, run_sweep, suggest

FLAGS = {"data": "digits", "objective": "byol+rotation", "epochs": 3, "subset": 200, "batch_size": 32}


@pytest.mark.parametrize("text", ["lr", "lr=", "=1", "lr=2:1", "lr=0:1:log", "lr=a:b", "lr=1:2:3"])
def test_wrong_ranges_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="over="):
        parse_range(text)


def test_a_grid_is_every_combination() -> None:
    ranges = [parse_range("lr=0.1,0.2"), parse_range("rotation.weight=0,1")]
    assert list(grid(ranges)) == [
        {"lr": lr, "rotation.weight": weight} for lr in (0.1, 0.2) for weight in (0, 1)
    ]  # fmt: skip
    with pytest.raises(RequestError, match="optuna"):
        list(grid([parse_range("lr=0.1:0.2")]))


def test_unknown_settings_are_refused(tmp_path: Path) -> None:
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


def test_tried_values_win_over_defaults(tmp_path: Path) -> None:
    few, many = (Trial(FLAGS, {"health.bank": n}, tmp_path) for n in (8, 16))
    assert few.flags["health"] == {"every": 1, "bank": 8}
    assert few.folder != many.folder
    assert parse_range("views.rotated.angles=[0,90],[0,180]").values == ([0, 90], [0, 180])
    with pytest.raises(RequestError, match="not a value"):
        parse_range("lr=[1")


def test_trials_die_with_a_killed_sweep(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "effssl", "sweep", "--data", "digits", "--epochs", "1000", "--over", "lr=0.2"]
    sweep = subprocess.Popen([*command, "--out", str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def trials() -> list[str]:
        files = Path("/proc").glob("[0-9]*/cmdline")
        return [p.name for p in files if f"{tmp_path}/trials/".encode() in content(p)]

    wait_until(lambda: any(tmp_path.glob("trials/*/config.yaml")))
    assert trials()
    sweep.send_signal(signal.SIGKILL)
    sweep.wait()
    wait_until(lambda: not trials())


def content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it has just ended
        return b""


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def trials_with_curves(out: Path, prune: bool = True) -> list[Trial]:
    """Three finished trials of 60 % and a fourth one, new, each with optuna's trial; nothing is trained."""
    study = create_study(Search("optuna", prune=prune))
    assert study is not None
    trials = [Trial(FLAGS, {"lr": lr}, out, study.ask()) for lr in (0.1, 0.2, 0.3, 0.4)]
    for trial in trials[:3]:
        write_curve(trial, [50.0, 55.0, 60.0])
        trial.save("finished")
        trial.tell(study)
    return trials


def write_curve(trial: Trial, knn: list[float]) -> None:
    """A run folder as training leaves it after so many epochs."""
    trial.folder.mkdir(parents=True, exist_ok=True)
    (trial.folder / "config.yaml").touch()
    lines = [{"epoch": epoch + 1, "knn": value} for epoch, value in enumerate(knn)]
    (trial.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_trial_below_the_median_is_pruned(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    *good, new = trials_with_curves(tmp_path)
    assert [trial.score for trial in good] == [60.0] * 3
    assert new.should_prune() == ""  # not started yet
    write_curve(new, [20.0])
    assert new.should_prune() == "kNN 20.0 at epoch 1 is below the median of the finished trials"
    write_curve(new, [20.0, 56.0])
    assert new.should_prune() == ""  # it has caught up
    write_curve(new, [20.0, 56.0, 20.0])
    assert new.should_prune() == ""  # it has ended by itself


def test_without_enough_trials_none_is_pruned(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    study = create_study(Search())
    assert study is not None
    first, second, third = (Trial(FLAGS, {"lr": lr}, tmp_path, study.ask()) for lr in (0.1, 0.2, 0.3))
    for trial in (first, second):
        write_curve(trial, [50.0, 55.0, 60.0])
        trial.save("finished")
        trial.tell(study)
    write_curve(third, [20.0])
    assert third.should_prune() == ""


def test_without_pruning_none_is_pruned(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    *_, new = trials_with_curves(tmp_path, prune=False)
    write_curve(new, [20.0])
    assert new.should_prune() == ""


def test_a_running_trial_is_pruned(tmp_path: Path) -> None:
    """Three trials whose curves are out of reach are finished; the fourth is stopped while it runs, and says why."""
    pytest.importorskip("optuna")
    flags = FLAGS | {"epochs": 90}
    ranges = [parse_range("lr=0.1,0.2,0.3,0.4")]
    for point in list(grid(ranges))[:3]:
        trial = Trial(flags, point, tmp_path)
        write_curve(trial, [101.0] * 90)
        trial.save("finished")
    *_, pruned = run_sweep(flags, ranges, tmp_path)
    assert pruned.state["state"] == "pruned"
    assert "below the median" in pruned.state["why"]
    assert pruned.score is None
    assert 30 <= len(pruned.state["curve"]) < 90  # not before a third of its epochs
    assert (pruned.folder / "checkpoint.pt").exists()


def test_optuna_searches_ranges_and_resumes(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    flags = FLAGS | {"epochs": 1}
    ranges = [parse_range("lr=0.01:1:log"), parse_range("views.rotated.angles=[0,90],[0,180]")]
    first = run_sweep(flags, ranges, tmp_path, Search("optuna", trials=1))
    again = run_sweep(flags, ranges, tmp_path, Search("optuna", trials=2))
    assert {t.folder for t in first} < {t.folder for t in again}
    assert all(0.01 <= t.tried["lr"] <= 1 and t.score is not None for t in again)
    assert all(t.tried["views.rotated.angles"] in ([0, 90], [0, 180]) for t in again)


def test_optuna_gets_the_values_as_they_are() -> None:
    pytest.importorskip("optuna")
    study = create_study(Search("optuna"))
    assert study is not None
    values = (1, 1.0, "1", True, None, [0, 90])
    found = [suggest(study.ask(), [Range("x", values)])["x"] for _ in range(60)]
    assert {(type(value), str(value)) for value in found} == {(type(value), str(value)) for value in values}


def test_a_grid_without_pruning_needs_no_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert create_study(Search(prune=False)) is None
    with pytest.raises(RequestError, match="prune=False"):
        create_study(Search())
    with pytest.raises(RequestError, match="pip install"):
        create_study(Search("optuna", prune=False))


def test_a_sweep_replaces_nobodys_files(tmp_path: Path) -> None:
    ranges = [parse_range("lr=0.1")]
    run = effssl.pretrain(**FLAGS | {"epochs": 1}, out=tmp_path / "run", quiet=True)
    run.knn()
    before = run.results_path.read_text()
    with pytest.raises(RequestError, match="is a run folder"):
        run_sweep(FLAGS, ranges, run.folder)
    assert run.results_path.read_text() == before
    assert not (run.folder / "trials").exists()
    for number, content in enumerate(['{"study": "E06"}', "[1, 2]", "not JSON"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "results.json").write_text(content)
        with pytest.raises(RequestError, match="not the result of a sweep"):
            run_sweep(FLAGS, ranges, folder)
        assert (folder / "results.json").read_text() == content


def test_images_without_labels(tmp_path: Path) -> None:
    import numpy as np

    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 255, (64, 16, 16, 3), dtype=np.uint8))
    command = [sys.executable, "-m", "effssl", "sweep", "--data", str(tmp_path / "x.npy"), "--epochs", "1"]
    command += ["--batch-size", "16", "--over", "lr=0.1", "--jobs", "1", "--out", str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no labels" in done.stderr.splitlines()[-1]
