"""The runs of a study at a scale: every arm with every seed, each in the folder of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    return runs
