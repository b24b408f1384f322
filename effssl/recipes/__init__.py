"""Recipes are YAML files in this folder; a request becomes a complete config: defaults < recipe < file < flags.

What a recipe says under `efficient` holds for a base method with rotation, unless the paper's form is asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from effssl.config import Config, build, config_type, flatten, merge, read_yaml, to_dict, written_by
from effssl.objectives.expression import parse
from effssl.objectives.options import PRETEXT, TERMS, feeds_base
from effssl.runtime.errors import RequestError, did_you_mean

FOLDER = Path(__file__).parent
NAMED_SETS = ("cifar10", "cifar100")
INF = float("inf")
LIMITS: dict[str, tuple[float, float]] = {
    "epochs": (1, INF), "batch_size": (2, INF), "lr": (1e-12, INF), "image_size": (0, INF), "subset": (0, INF),
    "seed": (0, INF), "checkpoint_every": (0, INF), "accumulate": (1, INF),
    "projector.layers": (0, INF), "projector.hidden": (1, INF),
    "projector.out": (1, INF), "optimizer.momentum": (0, 1), "optimizer.weight_decay": (0, INF),
    "optimizer.trust": (0, INF), "optimizer.clip_norm": (0, INF), "schedule.warmup_epochs": (0, INF),
    "augment.scale": (1e-6, 1), "augment.ratio": (1e-3, 1e3), "augment.flip": (0, 1), "augment.jitter": (0, 1),
    "augment.brightness": (0, INF), "augment.contrast": (0, INF), "augment.saturation": (0, INF),
    "augment.hue": (0, 0.5), "augment.gray": (0, 1), "augment.blur": (0, 1), "augment.blur_sigma": (1e-3, INF),
    "augment.blur_kernel": (0, INF), "augment.solarize": (0, 1), "augment.std": (1e-6, INF), "augment.small": (0, INF),
    "augment.pad": (0, INF), "schedule.step_factor": (0, 1),
    "schedule.grow_from": (1e-3, 1), "schedule.grow_until": (0, 1),
    "augment.small_size": (1, INF), "augment.small_scale": (1e-6, 1), "augment.saliency_share": (0, 1),
    "health.every": (0, INF), "health.bank": (1, INF), "health.queries": (1, INF), "health.snr_beta": (0, 1),
    "byol.momentum": (0, 1), "byol.momentum_end": (0, 1), "moco.queue": (1, INF), "moco.key_bn_groups": (1, INF),
    "moco.momentum": (0, 1), "moco.temperature": (1e-6, INF), "swav.queue": (0, INF), "swav.prototypes": (2, INF),
    "swav.epsilon": (1e-6, INF), "swav.temperature": (1e-6, INF), "simclr.temperature": (1e-6, INF),
    "simclr.known_labels": (0, 1), "supcon.temperature": (1e-6, INF), "supcon.label_noise": (0, 1),
    "supervised.label_noise": (0, 1), "rotation.size": (0, INF), "rotation.noise": (0, 1), "rotation.hidden": (0, INF),
    "rotation.scale": (0, 1), "rotation.share": (1e-6, 1), "rotation.every": (1, INF), "rotation.until": (0, 1),
    "rotation.upright": (0, 1), "rotation.weight_end": (0, INF), "jigsaw.every": (1, INF), "jigsaw.until": (0, 1),
    "jigsaw.weight_end": (0, INF), "jigsaw.permutations": (2, 362_880), "jigsaw.gray": (0, 1), "jigsaw.shift": (0, 255),
    **{f"{term}.weight": (0, INF) for term in TERMS},
}  # fmt: skip
"""Smallest and largest value of every number that could be wrong, both included."""
DOCUMENT_KEYS = ("cost", "score")  # what a recipe says about itself, for the reader


@dataclass(frozen=True)
class Plan:
    """A resolved request: the config, the weight of each term, and what the user should be told about it."""

    config: Config
    weights: dict[str, float]
    notes: list[str] = field(default_factory=list)

    @property
    def instance(self) -> bool:
        """Whether a term compares two views of an image."""
        return any(name not in PRETEXT for name in self.weights)


def names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def choose(data: str, terms: Iterable[str], accelerator: bool) -> str:
    """The recipe that `auto` stands for: the paper's where there is an accelerator, the CPU budget's otherwise.

    The first term that compares views decides, whatever its place in the sum; else the first of all.
    """
    terms = list(terms)
    term = next((term for term in terms if term not in PRETEXT), terms[0])
    small = data == "digits" or data.endswith((".npy", ".npz"))
    own = data if data in NAMED_SETS else "cifar10" if small else "images"
    families = (own, "imagenet100", "cifar10") if accelerator else ("cpu",)
    known = [f"{family}-{one}" for one in (term, "byol") for family in families if f"{family}-{one}" in names()]
    return known[0]  # a term from outside has no recipe and takes BYOL's


def read(name: str) -> dict[str, Any]:
    """A recipe's values, by its name or the path of a YAML file."""
    path = FOLDER / f"{name}.yaml"
    if not path.exists():
        path = Path(name)
        if not path.exists():
            raise RequestError(f"unknown recipe {name!r}{did_you_mean(name, names())}; recipes: {', '.join(names())}")
    values = read_yaml(path)
    return {key: value for key, value in values.items() if key not in DOCUMENT_KEYS}


def about(name: str) -> str:
    """What a recipe says it costs and scores, on one line."""
    values = read_yaml(FOLDER / f"{name}.yaml")
    return "; ".join(str(values[key]) for key in DOCUMENT_KEYS if key in values)


def resolve(flags: Mapping[str, Any], file: Path | None = None, accelerator: bool = False) -> Plan:
    """Turn what the user said (nested mapping of flags, and a config file) into a complete plan."""
    from_file = read_yaml(file) if file else {}
    of_a_run = "versions" in from_file  # complete: nothing is to be added to it
    source = f"{file}{written_by(from_file)}" if file else ""
    given = merge(from_file, flags)
    asked = {k: v for k, v in given.items() if k in ("data", "objective", "recipe", "form")}
    request = build(config_type(), asked, "request")
    if of_a_run and request.form != from_file.get("form", request.form):
        raise RequestError(f"{file} holds all settings of a run, and --form {request.form} would change none of them")
    written = parse(request.objective)
    name = request.recipe
    if name == "auto":
        name = choose(request.data, written, accelerator)
    recipe = read(name)
    section = recipe.pop("efficient", {})
    base = build(config_type(), recipe, f"recipe {name}")

    def with_request(base: Config) -> Config:
        config = build(config_type(), from_file, source, base) if file else base
        return build(config_type(), flags, "request", config)

    config, notes = with_request(base), [f"recipe {name}"]
    if request.form == "efficient" and not of_a_run and _joins(written, config):
        if not section and "form" in given:
            raise RequestError(f"recipe {name} has no efficient form; those named cpu-… and images-… do")
        section, note = _efficient(section, written, config, given)
        base = build(config_type(), section, f"recipe {name}", base)
        config, notes = with_request(base), [*notes, *note]

    if "lr" not in given and config.batch_size != base.batch_size:
        lr = base.lr * config.batch_size / base.batch_size
        notes.append(
            f"lr {base.lr:g} holds for batch {base.batch_size}; scaled to {lr:g} for batch {config.batch_size}"
        )
        config = dataclasses.replace(config, lr=lr)
    warmup, most = config.schedule.warmup_epochs, config.epochs / 10
    if config.epochs < base.epochs and warmup > most and "warmup_epochs" not in flags.get("schedule", {}):
        notes.append(f"warm-up shortened from {warmup:g} to {most:g} epochs, a tenth of the run")
        config = dataclasses.replace(config, schedule=dataclasses.replace(config.schedule, warmup_epochs=most))

    weights: dict[str, float] = {}
    for term, weight in written.items():
        options = getattr(config, term)
        weights[term] = options.weight if weight is None else weight
        config = dataclasses.replace(config, **{term: dataclasses.replace(options, weight=weights[term])})
    for term in [term for term, weight in weights.items() if weight == 0]:
        notes.append(f"{term} has weight 0 and is left out")
        del weights[term]
    if not weights:
        raise RequestError(f"objective {config.objective!r}: every term has weight 0")
    uses_labels = {"supervised", "supcon"} & set(weights) or config.simclr.known_labels > 0
    if uses_labels and not config.subset:
        notes.append("the labels of all training images are used: the kNN shown while training is not held out")
    if config.accumulate > 1:
        notes.append(
            f"each batch is computed in {config.accumulate} parts: batch norm, and terms that compare images, see "
            f"{config.batch_size // config.accumulate} images at a time, which is not the same as the large batch"
        )
    config = dataclasses.replace(config, recipe=name)
    check(config)
    return Plan(config, weights, notes)


def _joins(written: Mapping[str, float | None], config: Config) -> bool:
    """Whether rotation joins a base method, and neither has weight 0."""
    weights = {term: getattr(config, term).weight if w is None else w for term, w in written.items()}
    return weights.get("rotation", 0) != 0 and any(w != 0 for term, w in weights.items() if term not in PRETEXT)


def _efficient(
    section: Mapping[str, Any], terms: Iterable[str], config: Config, given: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """What holds of a recipe's efficient form beside what was asked for, and what to say about it."""
    if not section:
        return {}, []
    rotation, augment = dict(section["rotation"]), given.get("augment", {})
    if not feeds_base(config, terms, rotation.get("for_base", "nothing")):
        few = {key: rotation[key] for key in ("size", "update_stats")}
        return {"rotation": few}, [
            "rotated views of half the side; the rest of the efficient form does not go with this"
        ]
    if "scale" in rotation and "scale" in augment:
        rotation["scale"] = augment["scale"]
    if {"pad", "saliency"} & set(augment):
        rotation.pop("scale", None)  # rotated views are then made of the other two, which were cut as told
    grow = {} if any(key.startswith("grow") for key in given.get("schedule", {})) else section.get("schedule", {})
    batch = {key: section[key] for key in ("batch_size", "lr") if key in section}
    also = f" with batch {batch['batch_size']} and lr {batch['lr']:g}" if batch else ""
    note = f"rotation in its efficient form{also}; --form paper has the published one"
    return {"rotation": rotation} | ({"schedule": grow} if grow else {}) | batch, [note]


def check(config: Config) -> None:
    """Refuse values that cannot work, by name."""
    flat = flatten(to_dict(config))
    for name, (low, high) in LIMITS.items():
        values = flat[name] if isinstance(flat[name], list) else [flat[name]]
        if not values or not all(low <= value <= high for value in values):
            between = f"at least {low:g}" if high == INF else f"between {low:g} and {high:g}"
            raise RequestError(f"{name} is {flat[name]}; it must be {between}")
    if config.schedule.warmup_epochs >= config.epochs:
        warmup = f"{config.schedule.warmup_epochs:g} epochs of warm-up"
        raise RequestError(f"{warmup} leave nothing of a run of {config.epochs}; shorten --schedule.warmup-epochs")
    if not all(0 < mark < 1 for mark in config.schedule.steps):
        raise RequestError(f"schedule.steps {list(config.schedule.steps)} are shares of the run, between 0 and 1")
    if config.augment.blur_kernel and config.augment.blur_kernel % 2 == 0:
        raise RequestError(f"augment.blur_kernel is {config.augment.blur_kernel}; it must be odd")
    if config.optimizer.nesterov and (config.optimizer.name == "lars" or config.optimizer.momentum == 0):
        raise RequestError("optimizer.nesterov needs sgd with momentum")
