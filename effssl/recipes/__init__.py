"""Recipes are YAML files in this folder; a request becomes a complete config: defaults < recipe < file < flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from effssl.config import PRETEXT, Config, build, read_yaml
from effssl.errors import RequestError, did_you_mean
from effssl.objectives.expression import parse

FOLDER = Path(__file__).parent
NAMED_SETS = ("cifar10", "cifar100")
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


def choose(data: str, first_term: str, accelerator: bool) -> str:
    """The recipe that `auto` stands for: the paper's where there is an accelerator, the CPU budget's otherwise."""
    family = (data if data in NAMED_SETS else "images") if accelerator else "cpu"
    return f"{family}-{first_term}"


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
    from_file.pop("versions", None)
    given = _merge(from_file, flags)
    request = build(Config, {k: v for k, v in given.items() if k in ("data", "objective", "recipe")}, "request")
    written = parse(request.objective)
    name = request.recipe
    if name == "auto":
        name = choose(request.data, next(iter(written)), accelerator)
    recipe = read(name)
    base = build(Config, recipe, f"recipe {name}")
    config = build(Config, from_file, str(file), base) if file else base
    config = build(Config, flags, "request", config)
    notes = [f"recipe {name}"]

    if "lr" not in given and config.batch_size != base.batch_size:
        lr = base.lr * config.batch_size / base.batch_size
        notes.append(
            f"lr {base.lr:g} holds for batch {base.batch_size}; scaled to {lr:g} for batch {config.batch_size}"
        )
        config = dataclasses.replace(config, lr=lr)
    warmup, most = config.schedule.warmup_epochs, config.epochs / 10
    if config.epochs < base.epochs and warmup > most and "warmup_epochs" not in given.get("schedule", {}):
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
    config = dataclasses.replace(config, recipe=name)
    check(config)
    return Plan(config, weights, notes)


def check(config: Config) -> None:
    """Refuse values that cannot work."""
    positive = {"epochs": config.epochs, "batch_size": config.batch_size - 1, "lr": config.lr}
    for name, value in positive.items():
        if not value > 0:
            least = "2" if name == "batch_size" else "more than 0"
            raise RequestError(
                f"{name} is {getattr(config, name)}; it must be {'at least ' if name == 'batch_size' else ''}{least}"
            )
    for name in ("image_size", "subset", "seed"):
        if getattr(config, name) < 0:
            raise RequestError(f"{name} is {getattr(config, name)}; it cannot be negative")


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        merged[key] = _merge(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return merged
