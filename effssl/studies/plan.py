"""The runs of a study at a scale: every arm with every seed, each in the folder of its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from effssl.objectives.expression import parse
from effssl.objectives.options import TERMS
from effssl.recipes import resolve
from effssl.schema import digest
from effssl.studies.scales import Sources, arm_metrics, arm_settings, arms_at, check_sources
from effssl.studies.study import Arm, Metric, Study


@dataclass(frozen=True)
class Setup:
    """How a study is run."""

    scale: str = "cpu"
    seeds: int = 1
    out: Path = Path("studies")
    sources: Sources = field(default_factory=Sources)


@dataclass(frozen=True)
class ArmRun:
    """One run of one arm."""

    arm: Arm
    seed: int
    flags: Mapping[str, Any]  # the settings to train with
    metrics: Mapping[str, Metric]  # what to evaluate, by name
    folder: Path

    @property
    def needs_another(self) -> bool:
        """Whether a metric reads the results of another run, which has to be complete before."""
        return any("reuse" in metric.settings for metric in self.metrics.values())


def plan_runs(study: Study, setup: Setup) -> list[ArmRun]:
    """Every arm with every seed; arms of the same configuration share a folder, also between studies."""
    scale, sources = setup.scale, setup.sources
    check_sources(study, scale, sources)
    runs = []
    for arm in arms_at(study, scale):
        metrics = arm_metrics(study, arm, scale, sources)
        for seed in range(setup.seeds):
            flags = arm_settings(study, arm, seed, scale, sources)
            folder = setup.out / "arms" / f"{scale}-{digest(resolve(flags).config)}"
            runs.append(ArmRun(arm, seed, flags, metrics, folder))
    return [_with_reused_c(run, runs) for run in runs]


def _with_reused_c(run: ArmRun, runs: Sequence[ArmRun]) -> ArmRun:
    """In transfer the C of a base method is chosen, and reused for the same method with a task, as in the paper."""
    base = base_of(run.arm, [other.arm for other in runs])
    of_base = next((other for other in runs if other.arm is base and other.seed == run.seed), None)
    if of_base is None:
        return run
    reuse = {"reuse": str(of_base.folder / "results.json")}
    metrics = {
        name: replace(metric, settings={**metric.settings, **reuse}) if metric.protocol == "transfer" else metric
        for name, metric in run.metrics.items()
    }
    return replace(run, metrics=metrics)


def base_of(arm: Arm, arms: Sequence[Arm]) -> Arm | None:
    """The arm without pretext tasks that this one is compared with: same position on the axis, same settings."""
    terms = parse(arm.objective)
    base_terms = [term for term in terms if not TERMS[term].options.pretext]
    if not base_terms or len(base_terms) == len(terms):
        return None
    plain = [a for a in arms if not a.efficient and a.data == arm.data and a is not arm]
    bases = [a for a in plain if a.objective == "+".join(base_terms)]
    at_same_position = [a for a in bases if a.at == arm.at and a.length == arm.length]
    flags = {key: value for key, value in arm.flags.items() if key not in ("rotation", "views")}
    exact = [a for a in at_same_position if flags == dict(a.flags)]
    candidates = exact or at_same_position or [a for a in bases if a.at is None]
    return candidates[0] if candidates else None
