"""What a run's folder tells without its images: curves, verdict, scores, cost, settings."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from effssl.config import flatten, read_yaml
from effssl.run import Run
from effssl.runtime.files import without_folders, without_places

X_AXES = {"epoch": "epochs", "images": "images", "seconds": "seconds of training", "tflop": "TFLOP"}
# Title, metrics, unit, and what to read from it; a metric that is not named here gets a chart of its own.
CHARTS: tuple[tuple[str, str, str, str], ...] = (
    ("Loss", r"loss(/.*)?", "", "the weighted sum, and each term before its weight"),
    ("kNN accuracy", r"knn", "%", "on validation images, by the votes of their neighbors among training images"),
    ("Rotation accuracy", r"rotation_accuracy", "", "share of rotated training views whose angle is told"),
    ("Feature std", r"std_[hz]", "", "spread of directions: 1 is even, 0 is one point (collapse)"),
    ("Effective rank", r"rank_[hz]", "", "directions in use; a fall to almost none is a collapse"),
    ("Learning rate", r"lr", "", ""),
)
NAMES = {
    "loss": "sum", "knn": "kNN", "rotation_accuracy": "rotation", "std_h": "features h", "std_z": "projections z",
    "rank_h": "features h", "rank_z": "projections z", "lr": "lr",
}  # fmt: skip
NOT_CURVES = ("epoch", "step", "images", "seconds", "flops", "sampled")


def facts(run: Run) -> dict[str, Any]:
    """A run as plain values that JSON can hold."""
    lines, config = run.metrics(), read_yaml(run.config_path)
    versions = config.pop("versions", {})
    last = lines[-1] if lines else {}
    told: dict[str, Any] = next((line for line in reversed(lines) if "verdict" in line), {})
    settings, shown = run.config, without_places(flatten(config))
    return {
        "name": run.folder.resolve().name,
        "finished": run.finished,
        "epoch": last.get("epoch", 0),
        "epochs": settings.epochs,
        "verdict": told.get("verdict", "too early to tell"),
        "why": told.get("why", "no look at the trained network yet"),
        "about": {key: str(shown.get(key, "")) for key in ("objective", "data", "encoder", "recipe", "seed")},
        "scores": scores(run, lines),
        "curves": curves(lines, settings.rotation.chance),
        "cost": cost(last),
        "config": shown,
        "versions": {str(key): str(value) for key, value in versions.items()},
    }


def curves(lines: list[dict[str, Any]], turned_by_chance: float | None = None) -> dict[str, Any]:
    """Columns of metrics.jsonl, and which of them share a chart; what guessing rotations comes to."""
    keys = [key for key in dict.fromkeys(k for line in lines for k in line) if key not in NOT_CURVES]
    keys = [key for key in keys if any(_number(line.get(key)) for line in lines)]
    columns = {key: [line[key] if _number(line.get(key)) else None for line in lines] for key in keys}
    x = {key: [line.get(key, 0) for line in lines] for key in ("epoch", "images", "seconds")}
    x["tflop"] = [line.get("flops", 0) / 1e12 for line in lines]
    charts, left = [], list(keys)
    for title, pattern, unit, note in CHARTS:
        mine = [key for key in left if re.fullmatch(pattern, key)]
        left = [key for key in left if key not in mine]
        if mine:
            chance = turned_by_chance if mine == ["rotation_accuracy"] else None
            charts.append({"title": title, "keys": mine, "unit": unit, "note": note, "chance": chance})
    charts += [{"title": key, "keys": [key], "unit": "", "note": "", "chance": None} for key in left]
    names = {key: NAMES.get(key, key.removeprefix("loss/")) for key in keys}
    return {"x": x, "axes": X_AXES, "columns": columns, "charts": charts, "names": names}


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")


def _placeless(value: str) -> str:
    """A constant without where files lie: of a path its last name; "exp(cosine / 0.1)" is none."""
    return Path(value).name if Path(value).is_absolute() else re.sub(r"(?<!\S)[~.]?/\S*/", "", value)


def scores(run: Run, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last validation kNN, and everything in results.json with the protocol it was measured by."""
    found = []
    looks = [line for line in lines if line.get("knn") is not None]
    if looks:
        gain = f"{looks[-1]['knn'] - looks[0]['knn']:+.1f} over the untrained network"
        gain = gain if len(looks) > 1 else "the untrained network"
        same = _digest(run.config.data, run.config.subset, run.config.classes, run.config.health)
        found.append(_score("kNN, validation", looks[-1]["knn"], gain, [], same))
    turned = [line["rotation_accuracy"] for line in lines if "rotation_accuracy" in line]
    if turned:
        chance = 100 * run.config.rotation.chance
        how = f"training views; chance {chance:.0f} %"
        same = _digest(run.config.data, run.config.subset, run.config.rotation, run.config.augment)
        found.append(_score("rotation accuracy", 100 * turned[-1], how, [], same))
    for name, score in run.results().items():
        constants, source = flatten(score["constants"]), score.get("source", {})
        said = [f"{key} {_placeless(str(value))}" for key, value in constants.items()]
        on = f"{source.get('test_images', '')} test images of {source.get('data', 'its data')}".strip()
        metric = "" if score["metric"] == "accuracy" else f", {score['metric']}"
        title = f"{re.sub('^knn', 'kNN', without_folders(name))}{metric}, test"
        # What was found by the same search, or is a result itself, does not make two scores another measurement.
        chosen = ("C", "value", "mean_per_class", *(["lr"] if "lr_grid" in constants else []))
        fixed = {key: value for key, value in constants.items() if key.rsplit(".", 1)[-1] not in chosen}
        same = _digest(sorted(fixed.items()), source.get("test_images"), source.get("test_fingerprint"))
        found.append(_score(title, score["value"], f"{on}; {', '.join(said[:4])}", said, same))
    return found


def _score(name: str, value: float, how: str, constants: list[str], same: str) -> dict[str, Any]:
    """A score as pages show it; `same` is equal where two were measured alike, on the same images."""
    return {"name": name, "value": value, "unit": "%", "how": how, "constants": constants, "same": same}


def _digest(*parts: Any) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def without_places_of(run: Run, text: str) -> str:
    """A message about a run without the folders above what it names: its own folder, its data, its other files."""
    known = [run.folder, run.folder.resolve()]
    known += [Path(value) for value in flatten(read_yaml(run.config_path)).values() if isinstance(value, str)]
    for above in sorted({f"{path.parent}/" for path in known if path.parent.name}, key=len, reverse=True):
        text = re.sub(rf"(?<![\w/]){re.escape(above)}", "", text)
    return text


def cost(last: dict[str, Any]) -> list[tuple[str, str, float]]:
    """What the run has cost so far: name, text, and the number for comparing."""
    seconds, images, flops = (float(last.get(key, 0)) for key in ("seconds", "images", "flops"))
    rows = [
        ("epochs", f"{last.get('epoch', 0)}", float(last.get("epoch", 0))),
        ("optimizer steps", f"{last.get('step', 0):,}", float(last.get("step", 0))),
        ("images seen", f"{images:,.0f}", images),
        ("seconds of training", f"{seconds:,.1f}", seconds),
        ("TFLOP", f"{flops / 1e12:,.3f}", flops / 1e12),
    ]
    if seconds and images:
        rows += [
            ("images per second", f"{images / seconds:,.0f}", images / seconds),
            ("GFLOP per second", f"{flops / 1e9 / seconds:,.1f}", flops / 1e9 / seconds),
            ("MFLOP per image", f"{flops / 1e6 / images:,.1f}", flops / 1e6 / images),
        ]
    return rows
