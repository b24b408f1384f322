"""A run without its images: curves, verdict, scores, cost and settings, from the files of its folder."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from effssl.run import RunFolder
from effssl.runtime.private_paths import strip_constant, strip_score_name, strip_values
from effssl.schema import flatten, read_yaml

X_AXES = {"epoch": "epochs", "images": "images", "seconds": "seconds of training", "tflop": "TFLOP"}
# Title, metrics, unit and note; a metric that no pattern matches gets a chart of its own.
CHARTS: tuple[tuple[str, str, str, str], ...] = (
    ("Loss", r"loss(/.*)?", "", "the weighted sum, and each term without its weight"),
    ("kNN accuracy", r"knn", "%", "of validation images; neighbors are training images"),
    ("Task accuracy", r"accuracy/.*", "", "of each task, on training views"),
    ("Feature std", r"std_[hz]", "", "of normalized features times √dim: 1 is uniform, 0 is collapsed"),
    ("Effective rank", r"rank_[hz]", "", "directions in use; a drop to almost 1 is a collapse"),
    ("Learning rate", r"lr", "", ""),
)
NAMES = {
    "loss": "sum", "knn": "kNN", "std_h": "features h", "std_z": "projections z",
    "rank_h": "features h", "rank_z": "projections z", "lr": "lr",
}  # fmt: skip
NOT_CURVES = re.compile(r"epoch|step|images|seconds|flops|sampled|(chance|baseline)/.*")


def summarize(run: RunFolder) -> dict[str, Any]:
    """A run as values for JSON."""
    lines, config = run.metrics(), read_yaml(run.config_path)
    versions = config.pop("versions", {})
    last = lines[-1] if lines else {}
    judged: dict[str, Any] = next((line for line in reversed(lines) if "verdict" in line), {})
    shown = strip_values(flatten(config))
    return {
        "name": run.folder.resolve().name,
        "finished": run.finished,
        "epoch": last.get("epoch", 0),
        "epochs": run.config.epochs,
        "verdict": judged.get("verdict", "too early to tell"),
        "why": judged.get("why", "the trained network has not been evaluated yet"),
        "about": {key: str(shown.get(key, "")) for key in ("objective", "data", "encoder", "recipe", "seed")},
        "scores": scores(run, lines),
        "curves": curves(lines),
        "cost": cost(last),
        "config": shown,
        "versions": {str(key): str(value) for key, value in versions.items()},
    }


def curves(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Columns of metrics.jsonl, the charts that show them, and the chance level of each task."""
    keys = [key for key in dict.fromkeys(k for line in lines for k in line) if not NOT_CURVES.fullmatch(key)]
    keys = [key for key in keys if any(_number(line.get(key)) for line in lines)]
    columns = {key: [line[key] if _number(line.get(key)) else None for line in lines] for key in keys}
    x = {key: [line.get(key, 0) for line in lines] for key in ("epoch", "images", "seconds")}
    x["tflop"] = [line.get("flops", 0) / 1e12 for line in lines]
    charts, left = [], list(keys)
    for title, pattern, unit, note in CHARTS:
        matching = [key for key in left if re.fullmatch(pattern, key)]
        left = [key for key in left if key not in matching]
        if matching:
            charts.append(_chart(title, matching, lines, unit, note))
    charts += [_chart(key, [key], lines) for key in left]
    names = {key: NAMES.get(key, re.sub(r"^(loss|accuracy)/", "", key)) for key in keys}
    return {"x": x, "axes": X_AXES, "columns": columns, "charts": charts, "names": names}


def _chart(title: str, keys: list[str], lines: list[dict[str, Any]], unit: str = "", note: str = "") -> dict[str, Any]:
    levels = {key: chance_level(lines, key.removeprefix("accuracy/")) for key in keys if key.startswith("accuracy/")}
    chance = {key: level for key, level in levels.items() if level is not None}
    return {"title": title, "keys": keys, "unit": unit, "note": note, "chance": chance}


def chance_level(lines: list[dict[str, Any]], term: str) -> float | None:
    """The accuracy of guessing in a task, from 0 to 1, as last logged."""
    return _last(lines, f"chance/{term}")


def _last(lines: list[dict[str, Any]], key: str) -> float | None:
    return next((line[key] for line in reversed(lines) if _number(line.get(key))), None)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")


def scores(run: RunFolder, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last validation kNN, the accuracy of each task, and all scores of results.json with their protocols."""
    found = [*_knn_score(run, lines), *_task_scores(run, lines)]
    return found + [_result(name, score) for name, score in run.results().items()]


def _knn_score(run: RunFolder, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    values = [line["knn"] for line in lines if line.get("knn") is not None]
    if not values:
        return []
    config = run.config
    first = "starting weights" if config.start_from else "untrained network"
    gain = f"{values[-1] - values[0]:+.1f} over the {first}" if len(values) > 1 else f"the {first}"
    protocol = _digest(config.data, config.subset, config.classes, config.health)
    found = [_score("kNN, validation", values[-1], gain, [], protocol)]
    costs_nothing = {first: values[0]} if len(values) > 1 else {}
    costs_nothing |= {key.removeprefix("baseline/"): lines[0][key] for key in lines[0] if key.startswith("baseline/")}
    return found + [
        _score(f"kNN of {name}, validation", value, "costs nothing", [], protocol)
        for name, value in costs_nothing.items()
    ]


def _task_scores(run: RunFolder, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last accuracy of each task; comparable between runs with the same data, views and options of the task."""
    settings = flatten(read_yaml(run.config_path))
    found = []
    for key in dict.fromkeys(key for line in lines for key in line if key.startswith("accuracy/")):
        accuracy, term = _last(lines, key), key.removeprefix("accuracy/")
        if accuracy is None:
            continue
        chance = chance_level(lines, term)
        how = "training views" if chance is None else f"training views; chance {100 * chance:.3g} %"
        task = ("data", "subset", "classes", f"{term}.", "augment.", "views.")
        protocol = _digest(sorted((name, str(value)) for name, value in settings.items() if name.startswith(task)))
        found.append(_score(f"{term} accuracy", 100 * accuracy, how, [], protocol))
    return found


def _result(name: str, score: dict[str, Any]) -> dict[str, Any]:
    """A score of results.json."""
    constants, source = flatten(score["constants"]), score.get("source", {})
    texts = [f"{key} {strip_constant(str(value))}" for key, value in constants.items()]
    on = f"{source.get('test_images', '')} test images of {source.get('data', 'its data')}".strip()
    metric = "" if score["metric"] == "accuracy" else f", {score['metric']}"
    title = f"{re.sub('^knn', 'kNN', strip_score_name(name))}{metric}, test"
    # What the same search selected, or what is itself a result, does not make a different protocol.
    selected = ("C", "value", "mean_per_class", *(["lr"] if "lr_grid" in constants else []))
    fixed = {key: value for key, value in constants.items() if key.rsplit(".", 1)[-1] not in selected}
    protocol = _digest(sorted(fixed.items()), source.get("test_images"), source.get("test_fingerprint"))
    return _score(title, score["value"], f"{on}; {', '.join(texts[:4])}", texts, protocol)


def _score(name: str, value: float, how: str, constants: list[str], protocol: str) -> dict[str, Any]:
    """A score of a page; `protocol` is a digest, equal for scores measured in the same way on the same images."""
    return {"name": name, "value": value, "unit": "%", "how": how, "constants": constants, "protocol": protocol}


def _digest(*parts: Any) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def cost(last: dict[str, Any]) -> list[tuple[str, str, float]]:
    """The cost of the run so far: name, text and number."""
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
