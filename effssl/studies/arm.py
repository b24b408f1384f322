"""One run of an arm: train it, then evaluate what its results.json does not contain yet.

`python -m effssl.studies.arm FOLDER` is the child process of a study, a sweep or the demo: it reads the request as JSON
from stdin and writes a JSON object to stdout, which metrics are missing and why.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from effssl.runtime.errors import RequestError, RunFailed, Stopped, speaking_flags
from effssl.runtime.files import locked
from effssl.runtime.pool import Job
from effssl.runtime.processes import child_command
from effssl.studies.study import Metric
from effssl.verbs import Run, carry_out, score_name

START_UP = 3  # of running averages, in their time constants 1 / (1 − β)


def train(flags: Mapping[str, Any], folder: Path, quiet: bool) -> Run:
    """Train a run, or resume it; a finished run is returned as it is."""
    from effssl.training.request import Request

    return carry_out(Request(flags, folder, "auto", quiet=quiet, report=False))


def train_and_evaluate(
    flags: Mapping[str, Any], folder: Path, metrics: Mapping[str, Metric], quiet: bool = True
) -> dict[str, str]:
    """Train and evaluate one run; nothing is done twice. Returns why metrics are missing, by name.

    If another study works on the same run, wait for it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name(f"{folder.name}.lock")
    with locked(lock, f"{folder} is used", "stop that process", wait=float("inf")):
        run = train(flags, folder, quiet)
        missing = {}
        for name, metric in metrics.items():
            try:
                if value_of(run, metric) is None:
                    evaluate(run, metric)
                    value_of(run, metric)
            except RequestError as error:
                missing[name] = str(error)
    return missing


# ---------------------------------------------------------------------------------------------------------------
# Metrics, stored as scores in the run's results.json


def evaluate(run: Run, metric: Metric) -> None:
    """Evaluate a metric's protocol on each of its data sets; the scores go to the run's results.json."""
    stored = run.results()
    for data in data_sets(metric).values():
        if result_name(metric, data) not in stored:
            run.evaluate(metric.protocol, data, **metric.settings)


def value_of(run: Run, metric: Metric) -> float | None:
    """A metric's value from the run's scores; None if it is not evaluated yet, an error if it cannot be."""
    if metric.protocol == "snr":
        return mean_snr(run, metric.key)
    if metric.needs and not metric.data:
        raise RequestError(f"needs --{metric.needs}, a folder")
    if metric.key == "on_z" and not run.config.projector.layers:
        raise RequestError("has no projector")
    stored = run.results()
    scores = {name: stored.get(result_name(metric, data)) for name, data in data_sets(metric).items()}
    found = {name: score for name, score in scores.items() if score is not None}
    if len(found) < len(scores):
        return None
    if not metric.key:
        return sum(score["value"] for score in found.values()) / len(found)
    if metric.key in found:
        return float(found[metric.key]["value"])
    further = next(iter(found.values()))["also"]
    if metric.key not in further:
        raise RequestError("not among --sets" if metric.needs == "sets" else f"{metric.protocol} has no {metric.key}")
    return float(further[metric.key])


def mean_snr(run: Run, key: str = "snr") -> float:
    """The mean signal-to-noise ratio of the gradient that a run logged, times 1000, without the averages' start-up.

    Running averages over few steps have not averaged the noise out, and the ratio is far too large.
    """
    lines = run.metrics()
    if not any(key in line for line in lines):
        raise RequestError("the run did not log the signal-to-noise ratio of its gradient")
    started = round(START_UP / (1 - run.config.health.snr_beta))
    values = [line[key] for before, line in pairwise(lines) if key in line and before.get("step", 0) >= started]
    if not values:
        raise RequestError(f"the averages of the gradient start up in {started} steps; the run has no epoch after them")
    return 1000 * sum(values) / len(values)


def data_sets(metric: Metric) -> dict[str, str | None]:
    """What a metric is evaluated on, by name: the data sets given for transfer, otherwise one."""
    if metric.needs == "sets" and "sets" not in metric.settings:
        return dict(map(named_set, metric.data.split(",")))
    return {"": metric.data or None}


def named_set(item: str) -> tuple[str, str]:
    """Name and path of one of --sets: `flowers=PATH` stands for the published set; a path alone has its own name.

    >>> named_set("flowers=photos/flowers-small"), named_set("photos/cats")
    (('flowers', 'photos/flowers-small'), ('cats', 'photos/cats'))
    """
    name, equals, source = item.partition("=")
    return (name, source) if equals else (Path(item).name, item)


def result_name(metric: Metric, data: str | None) -> str:
    """The name under which `Run.evaluate` stores the score in results.json."""
    from effssl.evaluation import find_protocol

    protocol = find_protocol(metric.protocol)
    return score_name(metric.protocol, protocol.changed(protocol.options_of(metric.settings)), data, "")


# ---------------------------------------------------------------------------------------------------------------
# In a child process


def child_job(
    name: str, flags: Mapping[str, Any], folder: Path, metrics: Mapping[str, Metric] | None = None, **options: Any
) -> Job:
    """A job for the pool that trains and evaluates one run; `options` are those of `Job`."""
    request = {
        "flags": flags,
        "metrics": {key: asdict(metric) for key, metric in (metrics or {}).items()},
        "quiet": "on_line" not in options,
    }
    return Job(name, child_command("effssl.studies.arm", str(folder)), json.dumps(request), **options)


@speaking_flags()
def main(folder: str) -> None:
    """Handle the request on stdin."""
    request = json.load(sys.stdin)
    metrics = {name: Metric(**metric) for name, metric in request["metrics"].items()}
    try:
        print(json.dumps(train_and_evaluate(request["flags"], Path(folder), metrics, request["quiet"])))
    except (RequestError, RunFailed, Stopped) as error:
        print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
