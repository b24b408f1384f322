"""Several runs side by side: curves over each other, and what differs in settings, scores and cost."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from effssl.config import MACHINE_FIELDS
from effssl.errors import RequestError
from effssl.report.facts import facts
from effssl.run import Run

MOST = 12  # runs that can still be told apart


def compare(runs: Sequence[Run]) -> dict[str, Any]:
    """A comparison as plain values."""
    if len({run.folder.resolve() for run in runs}) < len(runs):
        raise RequestError("a run is given twice; compare different ones")
    if len(runs) > MOST:
        raise RequestError(f"{len(runs)} runs are too many to tell apart; compare at most {MOST}")
    each = [facts(run) for run in runs]
    for found, name in zip(each, short_names([run.folder.resolve() for run in runs]), strict=True):
        found["name"] = name
    keys = list(dict.fromkeys(key for found in each for key in found["config"] if key not in MACHINE_FIELDS))
    configs = [(key, [_text(found["config"].get(key)) for found in each]) for key in keys]
    scores = list(dict.fromkeys(score["name"] for found in each for score in found["scores"]))
    costs = list(dict.fromkeys(row[0] for found in each for row in found["cost"]))
    return {
        "kind": "comparison",
        "name": "Comparison of " + ", ".join(found["name"] for found in each),
        "runs": each,
        "scores": [(name, [_score(found, name) for found in each]) for name in scores],
        "costs": [(name, [{r[0]: r[1] for r in found["cost"]}.get(name, "") for found in each]) for name in costs],
        "differences": [(key, values) for key, values in configs if len(set(values)) > 1],
        "same": len([1 for _, values in configs if len(set(values)) == 1]),
        "notes": [f"{found['name']} is not finished." for found in each if not found["finished"]],
    }


def short_names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path, with what is before it where that is not enough to tell them apart."""
    if len(folders) < 2:
        return [folder.name for folder in folders]
    names = [folder.name for folder in folders]
    if len(set(names)) == len(names):
        return names
    shared = Path(os.path.commonpath(folders))
    return [str(folder.relative_to(shared)) for folder in folders]


def _score(found: dict[str, Any], name: str) -> float | None:
    return next((score["value"] for score in found["scores"] if score["name"] == name), None)


def _text(value: Any) -> str:
    return "—" if value is None else str(value)
