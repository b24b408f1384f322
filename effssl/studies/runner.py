"""Run a study: show the plan with its cost and run the arms in child processes; nothing is run twice.

effssl study run E06 --scale cpu --seeds 3 --jobs 2
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from effssl.runtime.errors import RequestError, Stopped
from effssl.runtime.pool import Pool
from effssl.runtime.private_paths import strip_flag
from effssl.runtime.progress import say
from effssl.studies.arm import child_job, train_and_evaluate, value_of
from effssl.studies.cost import show_plan
from effssl.studies.plan import ArmRun, Setup, plan_runs
from effssl.studies.scales import substitution
from effssl.studies.study import AVERAGE, TRANSFER, Study
from effssl.verbs import Run


@dataclass(frozen=True)
class ArmResult:
    """The result of one run of an arm."""

    run: ArmRun
    values: dict[str, float] = field(default_factory=dict)  # by metric
    missing: dict[str, str] = field(default_factory=dict)  # metric → why
    seconds: float = 0.0
    flops: float = 0.0
    failed: str = ""  # why, in one line
    origin: Mapping[str, str] = field(default_factory=dict)  # commit, precision, and the data that it was run on
    snr: Sequence[tuple[float, float]] = ()  # epochs, and the logged signal-to-noise ratio of the gradient there

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        return not self.failed and all(name in self.values for name in self.run.metrics)


@dataclass(frozen=True)
class Ended:
    """How training and evaluating one run ended: an error in one line, or which metrics are missing and why."""

    error: str = ""
    missing: dict[str, str] = field(default_factory=dict)


NOT_RUN = Ended("not run")
LineHandler = Callable[[ArmRun, str], None]


def run_study(study: Study, setup: Setup, jobs: int = 2, plan: bool = True) -> list[ArmResult]:
    """Run all arms that are not complete, `jobs` at a time (0: in this process), and return the results of all."""
    runs = plan_runs(study, setup)
    if plan:
        show_plan(f"{study.name} {study.title}: {substitution(study, setup.scale)}", runs, incomplete(runs))
    return run_arms(runs, jobs)


def run_arms(runs: Sequence[ArmRun], jobs: int, on_line: LineHandler | None = None) -> list[ArmResult]:
    """Run what is not complete and return the results of all; `on_line` gets the lines that a child writes.

    Runs that read the results of others come last.
    """
    first = run_in_turn([run for run in runs if not run.needs_another], jobs, on_line)
    last = run_in_turn([run for run in runs if run.needs_another], jobs, on_line)
    found = {(result.run.arm.name, result.run.seed): result for result in (*first, *last)}
    return [found[run.arm.name, run.seed] for run in runs]


def run_in_turn(runs: Sequence[ArmRun], jobs: int, on_line: LineHandler | None) -> list[ArmResult]:
    """Run what is not complete, `jobs` at a time, and return the results of all."""
    todo = incomplete(runs)
    started = time.monotonic()
    ended: dict[Path, Ended] = {}
    with closing(_in_this_process(todo) if jobs == 0 else _in_pool(todo, jobs, on_line)) as ends:
        for run, end in ends:
            ended[run.folder] = end
            minutes = (time.monotonic() - started) / len(ended) * (len(todo) - len(ended)) / 60
            say(f"{len(ended)}/{len(todo)}  {describe(result_of(run, end))}  ({minutes:.0f} min left)")
    return [result_of(run, ended.get(run.folder, NOT_RUN)) for run in runs]


def incomplete(runs: Sequence[ArmRun]) -> list[ArmRun]:
    """The runs that have to be trained or evaluated; of several with the same folder, the first."""
    first = {run.folder: run for run in reversed(runs)}
    return [run for run in first.values() if not result_of(run).complete][::-1]


def result_of(run: ArmRun, ended: Ended = NOT_RUN) -> ArmResult:
    """The result of a run as its folder contains it; `ended` explains what is missing there."""
    folder = Run(run.folder) if (run.folder / "config.yaml").is_file() else None
    if folder is None or not folder.finished:
        return ArmResult(run, failed=ended.error)
    values, missing = {}, {}
    for name, metric in run.metrics.items():
        try:
            value = value_of(folder, metric)
        except RequestError as error:
            missing[name] = str(error)
            continue
        if value is None:
            missing[name] = ended.missing.get(name, "not evaluated")
        else:
            values[name] = value
    if missing and ended.error and ended is not NOT_RUN:  # what is measured outranks how this attempt ended
        return ArmResult(run, failed=ended.error)
    values |= average_of(values)
    lines: list[dict[str, Any]] = folder.metrics()
    last = lines[-1] if lines else {}
    snr = [(line["epoch"], line["snr"]) for line in lines if "snr" in line]
    seconds, flops = last.get("seconds", 0.0), last.get("flops", 0.0)
    return ArmResult(run, values, missing, seconds, flops, "", origin_of(folder), snr)


def average_of(values: Mapping[str, float]) -> dict[str, float]:
    """The average of Table S5, where data sets for transfer were evaluated: over them and the run's own data."""
    if not {"linear", "transfer"} <= values.keys():
        return {}
    sets = [values[name] for name in TRANSFER if name in values]
    return {AVERAGE: (values["linear"] + sum(sets)) / (1 + len(sets))} if sets else {}


def origin_of(run: Run) -> dict[str, str]:
    """Which commit trained a run, in which precision, and on which data (a folder's name without its path)."""
    config = run.config
    commit = run.versions.get("commit", "unknown")
    return {"commit": commit, "precision": config.precision, "data": strip_flag(config.data)}


def describe(result: ArmResult) -> str:
    """A result in one line."""
    values = ", ".join(f"{name} {value:.2f}" for name, value in result.values.items())
    text = f"failed: {result.failed}" if result.failed else values
    return f"{result.run.arm.name}, seed {result.run.seed}: {text}"


Ends = Generator[tuple[ArmRun, Ended], None, None]


def _in_this_process(todo: Sequence[ArmRun]) -> Ends:
    for run in todo:
        try:
            yield run, Ended(missing=train_and_evaluate(run.flags, run.folder, run.metrics))
        except Stopped:
            raise
        except Exception as error:  # whatever it is, it must not stop the other arms
            yield run, Ended(str(error) or type(error).__name__)


def _in_pool(todo: Sequence[ArmRun], jobs: int, on_line: LineHandler | None) -> Ends:
    by_name = {str(run.folder): run for run in todo}
    options: dict[str, dict[str, Any]] = {name: {} for name in by_name}
    if on_line is not None:
        options = {name: {"on_line": _bound(on_line, run)} for name, run in by_name.items()}
    children = [child_job(name, run.flags, run.folder, run.metrics, **options[name]) for name, run in by_name.items()]
    with Pool(jobs) as pool:
        for result in pool.run(children):
            ended = Ended(result.error) if result.error else Ended(missing=json.loads(result.stdout.splitlines()[-1]))
            yield by_name[result.job.name], ended


def _bound(on_line: LineHandler, run: ArmRun) -> Callable[[str], None]:
    return lambda line: on_line(run, line)
