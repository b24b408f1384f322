"""A study runs its arms in child processes or in this one; failures are reported, complete arms are not repeated."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from effssl.studies.claims import beats
from effssl.studies.plan import Setup
from effssl.studies.report import rows, verdicts
from effssl.studies.results import StudyResults
from effssl.studies.runner import Ended, average_of, result_of, run_study
from effssl.studies.study import Arm, Study
from effssl.verbs import Run


def one_arm(name: str, **flags: Any) -> Arm:
    return Arm(name, "byol", {"knn": 50.0}, flags)


def test_a_failed_arm_stops_no_other_and_is_tried_again(tmp_path: Path) -> None:
    arms = (one_arm("good"), one_arm("bad", lr=1e30))
    study = Study("X", "x", "x", "cifar10", 200, ("knn",), arms, (beats([("good", "bad")], "knn", "good is better"),))
    setup = Setup("smoke", 1, tmp_path)
    good, bad = run_study(study, setup, jobs=0, plan=False)
    assert good.values["knn"] > 0
    assert "not finite" in bad.failed
    found = StudyResults(study, "smoke", [good, bad])
    assert "none (" in rows(found)[1][1]
    assert verdicts(replace(found, scale="cpu"))[0].verdict == "not decided"
    before = (good.run.folder / "encoder.safetensors").stat().st_mtime_ns
    good, bad = run_study(study, setup, jobs=1, plan=False)  # now in a process of its own
    assert "not finite" in bad.failed
    assert (good.run.folder / "encoder.safetensors").stat().st_mtime_ns == before


def test_a_new_metric_is_added_to_a_finished_arm(tmp_path: Path) -> None:
    def run(*metrics: str) -> dict[str, float]:
        study = Study("X", "x", "x", "cifar10", 200, metrics, (one_arm("good"),), ())
        (result,) = run_study(study, Setup("smoke", 1, tmp_path), jobs=0, plan=False)
        return result.values

    first = run("knn")
    assert set(first) == {"knn"}
    both = run("linear", "knn")
    assert set(both) == {"linear", "knn"}
    assert both["knn"] == first["knn"]
    assert run("knn") == first


def test_a_measurement_outranks_how_the_last_attempt_ended(tmp_path: Path) -> None:
    study = Study("X", "x", "x", "cifar10", 200, ("knn",), (one_arm("good"),), ())
    (result,) = run_study(study, Setup("smoke", 1, tmp_path), jobs=0, plan=False)
    again = result_of(result.run, Ended("killed after its last evaluation"))
    assert (again.failed, again.values) == ("", result.values)


def test_the_plan_shows_the_cost(tmp_path: Path, capsys: Any) -> None:
    study = Study("X", "x", "x", "cifar10", 200, ("knn",), (one_arm("good"),), ())
    run_study(study, Setup("smoke", 1, tmp_path), jobs=0)
    assert "to do: 1 runs" in capsys.readouterr().err
    run_study(study, Setup("smoke", 1, tmp_path), jobs=0)
    text = capsys.readouterr()
    assert "to do: 0 runs" in text.err
    assert "GFLOP per run" in text.out


COMMAND = [sys.executable, "-m", "effssl", "study"]


def test_a_killed_study_resumes(tmp_path: Path) -> None:
    command = [*COMMAND, "run", "E14", "--scale", "smoke", "--jobs", "0", "--out", str(tmp_path)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("arms/*/results.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.wait()
    first = {path: path.stat().st_mtime_ns for path in tmp_path.glob("arms/*/encoder.safetensors")}
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    finished = [Run(path.parent) for path in tmp_path.glob("arms/*/results.json")]
    assert [set(run.results()) for run in finished] == [{"knn", "linear epochs=2"}] * 4
    assert first
    assert all(path.stat().st_mtime_ns == then for path, then in first.items())
    assert "written:" in done.stdout
    assert "loses less accuracy" not in " ".join(done.stdout.split())  # no claims at smoke scale
    show = [*COMMAND, "show", "E14", "--scale", "smoke", "--out", str(tmp_path)]
    shown = subprocess.run(show, capture_output=True, text=True, check=True)
    assert "| BYOL+R, no jitter |" in shown.stdout


def test_a_stopped_study_leaves_its_runs_resumable(tmp_path: Path) -> None:
    arms = "(Arm('long', 'byol', {}, {'epochs': 1000}),)"
    code = (
        "import sys; from pathlib import Path\n"
        "from effssl.runtime.errors import Stopped\n"
        "from effssl.studies.plan import Setup\n"
        "from effssl.studies.runner import run_study\n"
        "from effssl.studies.study import Arm, Study\n"
        f"study = Study('X', 'x', 'x', 'cifar10', 200, ('knn',), {arms}, ())\n"
        "try: run_study(study, Setup('smoke', 1, Path(sys.argv[1])), jobs=1, plan=False)\n"
        "except Stopped: sys.exit(75)\n"
    )
    study = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("arms/*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    study.send_signal(signal.SIGTERM)
    assert study.wait(timeout=60) == 75
    assert list(tmp_path.glob("arms/*/checkpoint.pt"))


def test_the_average_counts_the_own_data_as_one_of_the_sets() -> None:
    assert average_of({"linear": 50.0, "transfer": 65.0, "cifar10": 60.0, "pets": 70.0}) == {"average": 60.0}
    assert average_of({"linear": 50.0}) == {}
