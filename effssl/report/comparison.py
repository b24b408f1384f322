"""Several runs side by side: their curves in shared charts, and differences in settings, scores and cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from effssl.config import MACHINE_FIELDS, Config
from effssl.network.options import DERIVED_STEMS
from effssl.objectives.expression import parse
from effssl.objectives.options import TERMS
from effssl.report.summary import summarize
from effssl.run import RunFolder
from effssl.runtime.errors import RequestError
from effssl.runtime.private_paths import short_names

MOST = 12  # runs that a chart can show distinctly


def compare(runs: Sequence[RunFolder]) -> dict[str, Any]:
    """The values of a comparison page."""
    if len({run.folder.resolve() for run in runs}) < len(runs):
        raise RequestError("a run is given twice; compare different runs")
    if len(runs) > MOST:
        raise RequestError(f"{len(runs)} runs are too many to compare; give at most {MOST}")
    each = [summarize(run) for run in runs]
    for found, name in zip(each, short_names([run.folder.resolve() for run in runs]), strict=True):
        found["name"] = name
    for found, name in zip(each, short_names([Path(run.config.data) for run in runs]), strict=True):
        found["config"]["data"] = name
    keys = list(dict.fromkeys(key for found in each for key in found["config"] if key not in MACHINE_FIELDS))
    configs = [(key, [_text(found["config"].get(key)) for found in each]) for key in keys]
    differing = [(key, values) for key, values in configs if len(set(values)) > 1]
    full = [run.config for run in runs]
    shown = [(key, values) for key, values in differing if all(matters(key, config) for config in full)]
    scores = list(dict.fromkeys(score["name"] for found in each for score in found["scores"]))
    costs = list(dict.fromkeys(row[0] for found in each for row in found["cost"]))
    return {
        "kind": "comparison",
        "name": "Comparison of " + ", ".join(found["name"] for found in each),
        "runs": each,
        "scores": [(name, _cells(each, name)) for name in scores],
        "costs": [(name, [{r[0]: r[1] for r in found["cost"]}.get(name, "") for found in each]) for name in costs],
        "differences": shown,
        "same": len(configs) - len(differing),
        "unused": len(differing) - len(shown),
        "notes": [f"{found['name']} is not finished." for found in each if not found["finished"]],
    }


def matters(key: str, config: Config) -> bool:
    """Whether a setting changes anything in a run with this configuration.

    >>> matters("simclr.temperature", Config(objective="byol")), matters("lr", Config())
    (False, True)
    """
    head, _, rest = key.partition(".")
    if head in TERMS:
        return head in parse(config.objective)
    switched = {
        "readout": config.whiten == "on",
        "start_projector": bool(config.start_from),
        "train_stem": config.stem in DERIVED_STEMS,
        "augment.saliency_share": bool(config.augment.saliency),
        "augment.saliency_by": bool(config.augment.saliency),
        "augment.blur_sigma": any(config.augment.blur),
        "augment.blur_kernel": any(config.augment.blur),
        "augment.solarize_threshold": any(config.augment.solarize),
        "schedule.grow_until": config.schedule.grow_from < 1,
        "schedule.grow": config.schedule.grow_from < 1,
        "health.snr_beta": config.health.snr,
        "optimizer.adamw_lr": config.optimizer.name == "muon",
    }
    if head == "views":
        group, _, option = rest.partition(".")
        return option == "count" or bool(config.views.named()[group].count)
    return switched.get(head, switched.get(key, True))


def _cells(each: list[dict[str, Any]], name: str) -> list[dict[str, Any] | None]:
    """A score of each run and how it was measured; the best is marked if all were measured in the same way."""
    found = [next((score for score in run["scores"] if score["name"] == name), None) for run in each]
    known = [score for score in found if score is not None]
    comparable = len({score["protocol"] for score in known}) == 1
    best = max(score["value"] for score in known) if comparable and len(known) > 1 else None
    return [
        score and {
            "value": score["value"], "best": score["value"] == best, "comparable": comparable,
            "how": ", ".join([score["how"], *score["constants"][4:]]),
        }
        for score in found
    ]  # fmt: skip


def _text(value: Any) -> str:
    return "—" if value is None else str(value)
