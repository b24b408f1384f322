"""Run a study: a plan with its cost, arms in processes of their own, nothing twice, and a failure stops nobody else.

effssl study run E06 --scale cpu --seeds 3 --jobs 2
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from effssl.runtime.errors import RequestError, RunFailed, Stopped
from effssl.runtime.files import write_atomically
from effssl.runtime.processes import child_environment, die_with_parent, last_words
from effssl.runtime.progress import say
from effssl.studies.plan import NOTHING, Job, Sources, jobs_of, show_plan
from effssl.studies.study import Study


@dataclass
class Outcome:
    """What became of a job."""

    job: Job
    values: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # measure → why
    seconds: float = 0.0
    flops: float = 0.0
    failed: str = ""


# ---------------------------------------------------------------------------------------------------------------
# One job


def carry_out(job: Mapping[str, Any]) -> None:
    """Train and measure one run; what is there already is not done again."""
    from effssl.training.pretraining import execute

    folder = Path(job["folder"])
    folder.parent.mkdir(parents=True, exist_ok=True)
    run = execute(dict(job["flags"]), folder, "auto", quiet=True, report=False)
    scores: dict[str, Any] = {}
    for name, measure in job["measures"].items():
        if measured(folder).get(name, {}).get("by") == measure:
            continue
        entry: dict[str, Any] = {"by": measure}
        try:
            entry["value"] = figure(run, measure, scores)
        except RequestError as error:
            entry = {"missing": str(error)}  # it is tried again next time
        keep(folder, name, entry)
    folder.with_suffix(".failed").unlink(missing_ok=True)


def keep(folder: Path, name: str, entry: dict[str, Any]) -> None:
    """Add a figure to those of a run; what was measured is not lost to what is missing now."""
    known = measured(folder)  # read anew: another study may measure the same run at the same time
    if "value" in entry or "value" not in known.get(name, {}):
        write_atomically(folder / "measures.json", json.dumps(known | {name: entry}, indent=1) + "\n")


def measured(folder: Path) -> dict[str, dict[str, Any]]:
    """The figures of a run so far: by name, a value and what it was measured by, or why it is missing."""
    stored = folder / "measures.json"
    return json.loads(stored.read_text()) if stored.exists() else {}


def figure(run: Any, measure: Mapping[str, Any], scores: dict[str, Any]) -> float:
    """One figure of a finished run; several figures of one score are measured once."""
    if measure["protocol"] == "snr":
        values = [line["snr"] for line in run.metrics() if "snr" in line]
        if not values:
            raise RequestError("the run did not log its gradient's signal-to-noise ratio")
        return 1000 * sum(values) / len(values)
    if measure["reads"] and not measure["data"]:
        raise RequestError(f"needs --{measure['reads']}, a folder")
    if measure["also"] == "on_z" and not run.config.projector.layers:
        raise RequestError("has no projection")
    key = json.dumps([measure["protocol"], measure["settings"], measure["data"]], sort_keys=True)
    if key not in scores:
        several = measure["reads"] == "sets" and "sets" not in measure["settings"]
        sets = dict(map(named, measure["data"].split(","))) if several else {"": measure["data"] or None}
        scores[key] = {n: run.evaluate(measure["protocol"], data, **measure["settings"]) for n, data in sets.items()}
    found = scores[key]
    if not measure["also"]:
        return sum(score.value for score in found.values()) / len(found)
    if measure["also"] in found:
        return found[measure["also"]].value
    also = next(iter(found.values())).also
    if measure["also"] not in also:
        wanted = "not among --sets" if measure["reads"] == "sets" else f"{measure['protocol']} has no such figure here"
        raise RequestError(wanted)
    return float(also[measure["also"]])


def named(item: str) -> tuple[str, str]:
    """One of --sets: flowers=path/to/folder stands for the published set of that name; alone, a folder is its own name.

    >>> named("flowers=photos/flowers-small"), named("photos/cats")
    (('flowers', 'photos/flowers-small'), ('cats', 'photos/cats'))
    """
    name, equals, source = item.partition("=")
    return (name, source) if equals else (Path(item).name, item)


def outcome(job: Job) -> Outcome:
    """What a job's folder holds."""
    from effssl.run import Run

    failed, known = job.folder.with_suffix(".failed"), measured(job.folder)
    if failed.exists():
        return Outcome(job, failed=failed.read_text().strip())
    if not known or not Run(job.folder).finished:
        return Outcome(job, failed="not run")
    last = Run(job.folder).metrics()[-1]
    values = {n: known[n]["value"] for n, m in job.measures.items() if known.get(n, {}).get("by") == m}
    missing = {n: known[n]["missing"] for n in job.measures if "missing" in known.get(n, {})}
    return Outcome(job, values, missing, last["seconds"], last["flops"])


def finished(job: Job) -> bool:
    """Whether nothing is left to do."""
    found = outcome(job)
    return not found.failed and all(name in found.values for name in job.measures)


# ---------------------------------------------------------------------------------------------------------------
# All jobs


def pace(arms: Path) -> float | None:
    """Seconds per GFLOP of the runs that have been finished here, of whatever study."""
    from effssl.run import Run

    runs = [Run(folder) for folder in sorted(arms.iterdir()) if folder.is_dir()] if arms.is_dir() else []
    ends = [run.metrics()[-1] for run in runs if run.finished]
    return sum(end["seconds"] for end in ends) / sum(end["flops"] / 1e9 for end in ends) if ends else None


def run_study(
    study: Study, scale: str = "cpu", seeds: int = 1, jobs: int = 2, out: Path = Path("studies"),
    sources: Sources = NOTHING, plan: bool = True,
) -> list[Outcome]:  # fmt: skip
    """Run what is not there yet, `jobs` at a time (0: in this process), and return what all jobs came to."""
    every = jobs_of(study, scale, seeds, out, sources)
    todo = list({job.folder: job for job in reversed(every) if not finished(job)}.values())[::-1]  # the first of equals
    if plan:
        show_plan(study, scale, every, todo, pace(every[0].folder.parent))
    started = time.monotonic()
    done = 0

    def one(job: Job) -> None:
        nonlocal done
        failed = job.folder.with_suffix(".failed")
        failed.unlink(missing_ok=True)
        request = {"flags": job.flags, "measures": job.measures, "folder": str(job.folder)}
        if jobs == 0:
            try:
                carry_out(request)
            except Stopped:
                raise
            except Exception as error:  # whatever it is, it stops nobody else
                write_atomically(failed, f"{error}\n")
        else:
            in_process(request, jobs, failed)
        done += 1
        found = outcome(job)
        left = (time.monotonic() - started) / done * (len(todo) - done)
        text = found.failed or ", ".join(f"{name} {value:.2f}" for name, value in found.values.items())
        say(f"{done}/{len(todo)}  {job.arm.name}, seed {job.seed}: {text}  ({left / 60:.0f} min left)")

    if jobs == 0:
        for job in todo:
            one(job)
        return [outcome(job) for job in every]
    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(one, job) for job in todo]
        try:
            for future in running:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)  # those that run save themselves; those that wait are not begun
            raise
    return [outcome(job) for job in every]


def in_process(request: Mapping[str, Any], jobs: int, failed: Path) -> None:
    """A job in a process of its own; what went wrong is kept in one line."""
    failed.parent.mkdir(parents=True, exist_ok=True)
    process = subprocess.run(
        [sys.executable, "-m", "effssl.studies.runner"], input=json.dumps(request), text=True, capture_output=True,
        env=child_environment(jobs),
    )  # fmt: skip
    if process.returncode < 0:
        write_atomically(failed, f"killed by signal {-process.returncode}\n")
    elif process.returncode:
        write_atomically(failed, last_words(process.stderr, process.returncode) + "\n")


if __name__ == "__main__":
    die_with_parent(os.getppid())
    try:
        carry_out(json.load(sys.stdin))
    except (RequestError, RunFailed, Stopped) as error:
        print(error, file=sys.stderr)
        sys.exit(1)
