"""The results of a study: its runs with their values, as results.json stores them and as it is read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import mean
from typing import Any

from effssl.runtime.cores import usable_cores
from effssl.runtime.errors import RequestError
from effssl.runtime.processor import processor_name
from effssl.runtime.reading import describe, read_json
from effssl.runtime.versions import versions
from effssl.studies.plan import ArmRun
from effssl.studies.runner import ArmResult
from effssl.studies.scales import substitution
from effssl.studies.study import Arm, Measured, Study


@dataclass(frozen=True)
class StudyResults:
    """A study with the results of its runs."""

    study: Study
    scale: str
    results: Sequence[ArmResult]
    command: str = ""  # the command line that produced them
    environment: Mapping[str, Any] = field(default_factory=dict)  # date, machine, threads, versions
    substitute: str = ""  # what replaces the published data and encoder; by default what replaces it now

    @property
    def measured(self) -> Measured:
        """All values by arm and metric."""
        values: dict[tuple[str, str], dict[int, float]] = {}
        for result in self.results:
            for name, value in result.values.items():
                values.setdefault((result.run.arm.name, name), {})[result.run.seed] = value
        arms = [arm for arm in self.study.arms if self.of(arm)]
        flops = {arm.name: [result.flops for result in self.of(arm) if result.flops] for arm in arms}
        return Measured(values, arms, {name: mean(counted) for name, counted in flops.items() if counted})

    @property
    def seeds(self) -> tuple[int, int]:
        """The least and the largest number of finished runs of an arm."""
        counts = [sum(1 for result in self.of(arm) if result.seconds) for arm in self.measured.arms]
        return (min(counts), max(counts)) if counts else (0, 0)

    @property
    def replaced(self) -> str:
        """What replaces the published data set and encoder, in words."""
        return self.substitute or substitution(self.study, self.scale)

    def of(self, arm: Arm) -> list[ArmResult]:
        """The results of one arm."""
        return [result for result in self.results if result.run.arm.name == arm.name]


def environment(threads: int) -> dict[str, Any]:
    """Date, machine, threads per run and versions, as they are now."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "machine": {"processor": processor_name(), "cores": usable_cores(), "torch": versions()["torch"]},
        "threads": threads,
        "versions": versions(),
    }


# ---------------------------------------------------------------------------------------------------------------
# results.json

ENVIRONMENT = ("date", "machine", "threads", "versions")


def results_record(found: StudyResults) -> dict[str, Any]:
    """What was run and measured; means, intervals and verdicts follow from it."""
    origins = [result.origin for result in found.results if result.origin]
    return {
        "study": found.study.name,
        "title": found.study.title,
        "scale": found.scale,
        "substitute": found.replaced,
        "command": found.command,
        **{key: found.environment[key] for key in ENVIRONMENT if key in found.environment},
        "commit": _distinct([origin["commit"] for origin in origins]),
        "precision": _distinct([origin["precision"] for origin in origins]),
        "runs": [_run_record(found.study, result) for result in found.results],
    }


def _distinct(values: Sequence[str]) -> str:
    return ", ".join(sorted(set(values))) or "unknown"


def _run_record(study: Study, result: ArmResult) -> dict[str, Any]:
    run = result.run
    entry: dict[str, Any] = {
        "arm": run.arm.name,
        "seed": run.seed,
        "objective": run.arm.objective,
        "at": run.arm.at,
        "curve": run.arm.curve,
        "epochs": run.flags["epochs"],
        "config": run.folder.name,
        "values": result.values,
        "missing": result.missing,
        "failed": result.failed,
        "seconds": result.seconds,
        "flops": result.flops,
        "published": dict(run.arm.published),
        "origin": dict(result.origin),
    }
    if result.snr and "snr" in study.metrics:
        entry["snr"] = [list(point) for point in result.snr]
    return entry


def read_results(study: Study, folder: Path) -> StudyResults:
    """The results that a folder's results.json contains; what was computed from them is not read."""
    record = read_record(folder)
    arms = {arm.name: arm for arm in study.arms}
    try:
        unknown = {run["arm"] for run in record["runs"]} - arms.keys()
        results = [_stored_result(arms[run["arm"]], run, folder) for run in record["runs"] if run["arm"] in arms]
    except (TypeError, LookupError, AttributeError, ValueError) as error:
        raise RequestError(f"{folder / 'results.json'} is damaged: {describe(error)}") from None
    if unknown:
        raise RequestError(
            f"{folder / 'results.json'}: {study.name} has no arm {min(unknown, key=str)!r}; run the study again"
        )
    stored = {key: record[key] for key in ENVIRONMENT if key in record}
    return StudyResults(study, record["scale"], results, record["command"], stored, record["substitute"])


def read_record(folder: Path) -> dict[str, Any]:
    """The results.json of a study as it is stored."""
    path = folder / "results.json"
    try:
        record: dict[str, Any] = read_json(path)
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} cannot be read: {describe(error)}") from None
    if not isinstance(record, dict) or not {"study", "scale", "runs", "command", "substitute"} <= record.keys():
        raise RequestError(f"{path} does not hold the results of a study")
    return record


def _stored_result(arm: Arm, entry: Mapping[str, Any], folder: Path) -> ArmResult:
    run = ArmRun(arm, entry["seed"], {"epochs": entry["epochs"]}, {}, folder / entry["config"])
    values = (entry["values"], entry["missing"], entry["seconds"], entry["flops"], entry["failed"])
    snr = [(epoch, ratio) for epoch, ratio in entry.get("snr", ())]
    return ArmResult(run, *values, entry.get("origin", {}), snr)
