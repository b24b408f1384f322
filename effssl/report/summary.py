"""A run without its images: curves, verdict, scores, cost and settings, from the files of its folder."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from effssl.report.standing import MEASURES, baselines, standing
from effssl.run import RunFolder
from effssl.runtime.private_paths import strip_constant, strip_score_name, strip_values
from effssl.schema import flatten, read_yaml
from effssl.training.verdict import difference

X_AXES = {"epoch": "epochs", "images": "images", "seconds": "seconds of training", "tflop": "TFLOP"}
# Title, metrics, unit and note; a metric that no pattern matches gets a chart of its own.
CHARTS: tuple[tuple[str, str, str, str], ...] = (
    ("Loss", r"loss(/.*)?", "", "the weighted sum, and each term without its weight"),
    ("kNN accuracy", r"knn", "%", "of validation images; neighbors are training images"),
    ("Agreement of neighbors", r"agreement", "%", "of images and their changed copies; needs no labels"),
    ("Task accuracy", r"accuracy/.*", "", "of each task, on training views"),
    ("Feature std", r"std_[hz]", "", "of normalized features times √dim: 1 is uniform, 0 is collapsed"),
    ("Effective rank", r"rank_[hz]", "", "directions in use; a drop to almost 1 is a collapse"),
    ("Learning rate", r"lr", "", ""),
)
NAMES = {
    "loss": "sum", "knn": "kNN", "agreement": "agreement", "std_h": "features h", "std_z": "projections z",
    "rank_h": "features h", "rank_z": "projections z", "lr": "lr",
}  # fmt: skip
PARTS = {"test": "test images", "train": "training images"}
OTHER_AGREEMENT = "it may differ from that of training, whose images may be fewer and of another size"
NOT_CURVES = re.compile(r"epoch|step|images|seconds|flops|sampled|(chance|baseline)/.*")


def summarize(run: RunFolder) -> dict[str, Any]:
    """A run as values for JSON."""
    lines, config = run.metrics(), read_yaml(run.config_path)
    config.pop("versions", None)
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
        "standing": _standing(run, lines),
        "scores": scores(run, lines),
        "curves": curves(lines),
        "cost": cost(last),
        "facts": facts(run, last),
        "config": shown,
        "versions": run.versions,
    }


def _standing(run: RunFolder, lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    found = standing(lines, run.config.start_from)
    return None if found is None else {"title": found.title, "measure": found.measure, "scores": found.scores}


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
    measured = any(key in MEASURES for key in keys)  # what the baselines are compared by
    found = {"title": title, "keys": keys, "unit": unit, "note": note, "chance": chance}
    return found | {"free": baselines(lines) if measured else {}}


def chance_level(lines: list[dict[str, Any]], term: str) -> float | None:
    """The accuracy of guessing in a task, from 0 to 1, as last logged."""
    return _last(lines, f"chance/{term}")


def _last(lines: list[dict[str, Any]], key: str) -> float | None:
    return next((line[key] for line in reversed(lines) if _number(line.get(key))), None)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")


def scores(run: RunFolder, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last validation kNN, the accuracy of each task, and all scores of results.json with their protocols."""
    found = [*_validation_scores(run, lines), *_task_scores(run, lines)]
    twice = any(line.get("agreement") is not None for line in lines)  # while training, and by effssl eval
    return found + [_result(name, score, twice) for name, score in run.results().items()]


def _validation_scores(run: RunFolder, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last score of the features that was measured while training, and what is compared with it."""
    measure = next((one for one in MEASURES if any(line.get(one) is not None for line in lines)), "")
    values = [line[measure] for line in lines if line.get(measure) is not None]
    if not values:
        return []
    config = run.config
    first = "starting weights" if config.start_from else "untrained network"
    gain = f"{difference(values[-1], values[0])} the {first}" if len(values) > 1 else f"the {first}"
    what = "kNN" if measure == "knn" else "agreement of neighbors"
    # Agreement depends on the side of the images that are changed and on their number, of which a budget decides.
    of_images = () if measure == "knn" else (config.image_size, _last(lines, "sampled"))
    protocol = _digest(config.data, config.subset, config.classes, config.health, *of_images)
    where = ", validation" if measure == "knn" else ""
    found = [_score(f"{what}{where}", values[-1], gain, [], protocol)]
    compared = standing(lines, config.start_from)
    others = list(compared.scores.items())[1:] if compared is not None else []
    return found + [
        _score(f"{what} of {name}{where}", value, "costs nothing", [], protocol) | {"free": True}
        for name, value in others
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


def _result(name: str, score: dict[str, Any], twice: bool) -> dict[str, Any]:
    """A score of results.json; `twice` if agreement was measured while training, too."""
    constants, source = flatten(score["constants"]), score.get("source", {})
    texts = [f"{key} {strip_constant(str(value))}" for key, value in constants.items()]
    part = "test" if "test_images" in source or "train_images" not in source else "train"
    on = f"{source.get(f'{part}_images', '')} {PARTS[part]} of {source.get('data', 'its data')}".strip()
    metric = "" if score["metric"] in ("accuracy", score["protocol"]) else f", {score['metric']}"
    title = re.sub("^agreement", "agreement of neighbors", re.sub("^knn", "kNN", strip_score_name(name)))
    title += f"{metric}, {'test' if part == 'test' else 'effssl eval'}"
    on += f"; {OTHER_AGREEMENT}" if twice and score["protocol"] == "agreement" else ""
    # What the same search selected, or what is itself a result, does not make a different protocol.
    selected = ("C", "value", "mean_per_class", *(["lr"] if "lr_grid" in constants else []))
    fixed = {key: value for key, value in constants.items() if key.rsplit(".", 1)[-1] not in selected}
    protocol = _digest(sorted(fixed.items()), source.get(f"{part}_images"), source.get(f"{part}_fingerprint"))
    return _score(title, score["value"], f"{on}; {', '.join(texts[:4])}", texts, protocol)


def _score(name: str, value: float, how: str, constants: list[str], protocol: str) -> dict[str, Any]:
    """A score of a page; `protocol` is a digest, equal for scores measured in the same way on the same images."""
    found = {"name": name, "value": value, "unit": "%", "how": how, "constants": constants, "protocol": protocol}
    return found | {"free": False}  # true of what costs nothing


def _digest(*parts: Any) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def duration(seconds: float) -> str:
    """Seconds as text.

    >>> duration(42), duration(150), duration(7300)
    ('42 s', '2 min 30 s', '2 h 01 min')
    """
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"


def facts(run: RunFolder, last: dict[str, Any]) -> list[tuple[str, str]]:
    """What a reader wants to know at first sight: how long it took, on how many images, and how large it is."""
    epoch = last.get("epoch", 0)
    found = [("time of training", duration(float(last.get("seconds", 0))))]
    found.append(("images seen", f"{last.get('images', 0):,} in {epoch} epoch{'s' * (epoch != 1)}"))
    if run.finished:
        found.append(("encoder file", f"{run.encoder_path.stat().st_size / 1e6:.1f} MB"))
    return found


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
