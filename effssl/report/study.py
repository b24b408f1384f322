"""The values of a study's page: its table, its claims, and the results of every arm beside the published ones."""

from __future__ import annotations

import base64
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from effssl.runtime.errors import RequestError
from effssl.runtime.reading import describe, read_json


def read_study(folder: Path) -> dict[str, Any]:
    """Read the results.json that `effssl study run` writes."""
    try:
        found = read_json(folder / "results.json")
    except (OSError, ValueError) as error:
        raise RequestError(f"{folder / 'results.json'} cannot be read: {describe(error)}") from None
    if not isinstance(found, dict) or not {"study", "title", "runs", "claims"} <= found.keys():
        raise RequestError(f"{folder} is neither a run folder nor a results folder of effssl study run")
    try:
        return _page(found, folder)
    except (TypeError, LookupError, AttributeError, ValueError) as error:
        raise RequestError(f"{folder / 'results.json'} is damaged: {describe(error)}") from None


def _page(found: dict[str, Any], folder: Path) -> dict[str, Any]:
    figure = folder / "figure.png"
    encoded = base64.b64encode(figure.read_bytes()).decode() if figure.is_file() else ""
    return {
        "kind": "study",
        "name": f"{found['study']}: {found['title']}",
        "scale": found.get("scale", ""),
        "substitute": found.get("substitute", ""),
        "command": found.get("command", ""),
        "machine": found.get("machine", {}),
        "claims": found["claims"],
        "remarks": found.get("remarks", []),
        "table": found.get("table"),
        "fine_print": found.get("fine_print", ""),
        "measures": [_measure(found["runs"], name) for name in _names(found["runs"])],
        "figure": f"data:image/png;base64,{encoded}" if encoded else "",
        "notes": [],
    }


def _names(runs: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in [*run["values"], *run["published"]]))


def _measure(runs: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """One measure: per arm our mean and standard deviation, the published value, the cost, and the axis position."""
    arms = []
    for arm in dict.fromkeys(run["arm"] for run in runs):
        seeds = [run for run in runs if run["arm"] == arm]
        values = [run["values"][name] for run in seeds if name in run["values"]]
        costs = [run["flops"] for run in seeds if run["flops"]]
        arms.append({
            "arm": arm,
            "objective": seeds[0]["objective"],
            "at": seeds[0]["at"],
            "ours": mean(values) if values else None,
            "spread": stdev(values) if len(values) > 1 else 0.0,
            "published": seeds[0]["published"].get(name),
            "tflop": mean(costs) / 1e12 if costs else None,
            "seeds": len(values),
        })  # fmt: skip
    return {"name": name, "arms": arms}
