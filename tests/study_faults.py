"""Faults of studies: two at once in one folder, and one that is killed and started again; all measure the same."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAME = "E14"
COMMAND = [sys.executable, "-m", "effssl", "study", "run", NAME, "--scale", "smoke", "--jobs", "2", "--out"]
LIMIT = 600  # seconds that a study may take


def start(out: Path) -> subprocess.Popen:
    """Start the study in a process group of its own."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*COMMAND, str(out)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


def finish(study: subprocess.Popen) -> str:
    """Wait for a study; what it said if it did not end well."""
    text, _ = study.communicate(timeout=LIMIT)
    return "" if study.returncode == 0 else f"code {study.returncode}: {text[-500:]}"


def values(out: Path) -> dict[str, object]:
    """What a study measured, by arm, and why arms failed."""
    runs = json.loads((out / f"{NAME}-smoke" / "results.json").read_text())["runs"]
    return {f"{run['arm']} {run['seed']}": run["failed"] or run["values"] for run in runs}


def two_at_once(folder: Path, expected: dict[str, object]) -> str:
    """Two studies in one folder, started together; what went wrong."""
    both = [start(folder), start(folder)]
    said = [finish(study) for study in both]
    return next(filter(None, said), "") or _compared(folder, expected)


def killed_and_restarted(folder: Path, expected: dict[str, object], seconds: float) -> str:
    """A study that is killed after so many seconds, and is started again; what went wrong."""
    first = start(folder)
    with contextlib.suppress(subprocess.TimeoutExpired):
        first.wait(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(first.pid, signal.SIGKILL)
    first.communicate(timeout=LIMIT)
    whole = _finished_encoders(folder)
    said = finish(start(folder))
    again = [path for path, then in whole.items() if path.stat().st_mtime_ns != then]
    return said or _compared(folder, expected) or (f"trained again: {again}" if again else "")


def _finished_encoders(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.glob("arms/*/encoder.safetensors")}


def _compared(folder: Path, expected: dict[str, object]) -> str:
    found = values(folder)
    different = [arm for arm in expected.keys() | found.keys() if expected.get(arm) != found.get(arm)]
    return f"other results of {', '.join(sorted(different))}" if different else ""


def all_faults(folder: Path, dice: random.Random, trials: int) -> list[tuple[str, str]]:
    """Each fault `trials` times: its name, and what went wrong."""
    begun = time.monotonic()
    said = finish(start(folder / "alone"))
    assert not said, said
    expected, seconds = values(folder / "alone"), time.monotonic() - begun
    outcomes = []
    for trial in range(trials):
        outcomes.append(("two studies at once", two_at_once(folder / f"two{trial}", expected)))
        moment = dice.random() * seconds
        outcomes.append(("study killed", killed_and_restarted(folder / f"killed{trial}", expected, moment)))
    return outcomes
