"""Is it any good? The features of a run beside what costs nothing: one measure, the same images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MEASURES = {"knn": "kNN accuracy, validation images", "agreement": "agreement of neighbors under augmentation"}
"""Columns of metrics.jsonl that a run is compared by, and what they are."""
BASELINES = {"patches": "k-means patches", "untrained": "untrained network", "pixels": "raw pixels", "chance": "chance"}


@dataclass(frozen=True)
class Standing:
    """The score of a run and of what costs nothing, in percent; the run itself comes first."""

    measure: str  # a key of MEASURES
    scores: dict[str, float]

    @property
    def title(self) -> str:
        """What is compared."""
        return MEASURES[self.measure]

    @property
    def text(self) -> str:
        """All of it in one line."""
        (_, score), *others = self.scores.items()
        name = "kNN" if self.measure == "knn" else "agreement of neighbors"
        return f"{name} {score:.1f} % ({', '.join(f'{other} {value:.1f}' for other, value in others)})"


def standing(lines: list[dict[str, Any]], started_from: str = "") -> Standing | None:
    """How a run compares, from the lines of metrics.jsonl; None before its first evaluation after training."""
    for measure in MEASURES:
        values = [line[measure] for line in lines if line.get(measure) is not None]
        if len(values) < 2:
            continue
        free = baselines(lines)
        first = "starting weights" if started_from else "untrained network"
        scores = {"this run": values[-1], first: values[0]}
        return Standing(measure, scores | free)
    return None


def baselines(lines: list[dict[str, Any]]) -> dict[str, float]:
    """The scores of what costs nothing, which one of the lines holds, by their names."""
    found = next((line for line in lines if "baseline/chance" in line), {})
    return {name: found[f"baseline/{key}"] for key, name in BASELINES.items() if f"baseline/{key}" in found}


def sign(verdict: str) -> str:
    """A mark for a verdict: learning, failing, or neither yet."""
    failing = verdict == "collapsing" or verdict.startswith("worse")
    return "✓" if verdict == "learning" else "✗" if failing else "=" if verdict.startswith("no better") else "…"
