"""From a request to a plan: defaults < recipe < file < flags, then everything is checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from effssl.augment.options import ViewGroup
from effssl.config import Config, config_type
from effssl.objectives.expression import parse
from effssl.recipes.catalog import choose, published_form, read
from effssl.runtime.errors import RequestError
from effssl.schema import build, check, merge, read_yaml, written_by


@dataclass(frozen=True)
class Plan:
    """A resolved request: the complete config, the weight of each term that takes part, and notes for the user."""

    config: Config
    weights: dict[str, float]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Given:
    """What the user gave: a config file, and flags over it."""

    flags: Mapping[str, Any]
    file: Mapping[str, Any]
    source: str  # the file, for error messages
    complete: bool  # the file is the config.yaml of a run, which has every setting

    def over(self, base: Config) -> Config:
        """These settings over others."""
        config = build(config_type(), self.file, self.source, base)
        return build(config_type(), self.flags, "request", config)


def resolve(flags: Mapping[str, Any], file: Path | None = None, accelerator: bool = False) -> Plan:
    """Turn flags (a nested mapping of what was really given) and a config file into a complete plan.

    >>> plan = resolve({"data": "cifar10", "objective": "simsiam + 0.1*rotation", "epochs": 5})
    >>> plan.weights, plan.config.recipe
    ({'simsiam': 1.0, 'rotation': 0.1}, 'cpu-simsiam-efficient')
    """
    request = _read(flags, file)
    asked = request.over(config_type()())
    # Terms of weight 0 are left out before a recipe is chosen: byol+0*rotation is byol.
    name = choose(asked.data, _nonzero(asked), accelerator) if asked.recipe == "auto" else asked.recipe
    base = asked if request.complete else build(config_type(), read(name), f"recipe {name}")
    config = dataclasses.replace(request.over(base), recipe=name)
    notes = [_recipe_note(name, asked.recipe)]
    config = _scale_lr(config, base, request, notes)
    config = _shorten_warmup(config, base, request, notes)
    weights = _nonzero(config)
    for term in parse(config.objective):
        if term not in weights:
            notes.append(f"{term} has weight 0 and is left out")
        options = dataclasses.replace(getattr(config, term), weight=weights.get(term, 0.0))
        config = dataclasses.replace(config, **{term: options})
    check(config)
    check_combinations(config)
    return Plan(config, weights, notes + _warnings(config, weights))


def _read(flags: Mapping[str, Any], file: Path | None) -> _Given:
    values = read_yaml(file) if file else {}
    complete = "versions" in values
    request = _Given(flags, values, f"{file}{written_by(values)}", complete)
    recipe = flags.get("recipe", "auto")
    if complete and recipe not in ("auto", values.get("recipe")):
        raise RequestError(f"{file} has all settings of a run, so --recipe {recipe} would change none of them")
    return request


def _nonzero(config: Config) -> dict[str, float]:
    """The weight of each term that takes part: as written in the objective, else the term's setting."""
    written = parse(config.objective)
    weights = {term: getattr(config, term).weight if weight is None else weight for term, weight in written.items()}
    nonzero = {term: weight for term, weight in weights.items() if weight != 0}
    if not nonzero:
        raise RequestError(f"objective {config.objective!r}: every term has weight 0")
    return nonzero


def _recipe_note(name: str, asked: str) -> str:
    published = published_form(name) if asked == "auto" else ""
    return f"recipe {name}" + (f"; --recipe {published} has the published form of rotation" if published else "")


def _scale_lr(config: Config, base: Config, request: _Given, notes: list[str]) -> Config:
    """A recipe's learning rate holds for its batch size; it is proportional to it."""
    if "lr" in merge(request.file, request.flags) or config.batch_size == base.batch_size:
        return config
    lr = base.lr * config.batch_size / base.batch_size
    notes.append(f"lr {base.lr:g} holds for batch {base.batch_size}; scaled to {lr:g} for batch {config.batch_size}")
    return dataclasses.replace(config, lr=lr)


def _shorten_warmup(config: Config, base: Config, request: _Given, notes: list[str]) -> Config:
    """A warm-up is meant for as many epochs as stand beside it; a shorter run gets at most a tenth of itself."""
    if "warmup_epochs" in request.flags.get("schedule", {}):
        return config
    in_file = "warmup_epochs" in request.file.get("schedule", {})
    meant_for = request.file.get("epochs", base.epochs) if in_file else base.epochs
    warmup, longest = config.schedule.warmup_epochs, config.epochs / 10
    if config.epochs >= meant_for or warmup <= longest:
        return config
    notes.append(f"warm-up shortened from {warmup:g} to {longest:g} epochs, a tenth of the run")
    return dataclasses.replace(config, schedule=dataclasses.replace(config.schedule, warmup_epochs=longest))


def _warnings(config: Config, weights: Mapping[str, float]) -> list[str]:
    """What the user should know before the run."""
    notes = []
    if any(getattr(config, term).uses_labels for term in weights) and not config.subset:
        notes.append("the labels of all training images are used: the kNN shown while training is not held out")
    if config.accumulate > 1:
        notes.append(
            f"each batch is split into {config.accumulate} micro-batches: batch norm, and terms that compare images, "
            f"see {config.batch_size // config.accumulate} images at a time, which is not the same as the large batch"
        )
    return notes


def check_combinations(config: Config) -> None:
    """Refuse values that are in range and do not go together."""
    schedule, optimizer = config.schedule, config.optimizer
    if schedule.warmup_epochs >= config.epochs:
        warmup = f"{schedule.warmup_epochs:g} epochs of warm-up"
        raise RequestError(f"{warmup} leave nothing of a run of {config.epochs}; shorten --schedule.warmup-epochs")
    if not all(0 < share < 1 for share in schedule.milestones):
        raise RequestError(f"schedule.milestones is {list(schedule.milestones)}; each is a share above 0 and below 1")
    if config.augment.blur_kernel and config.augment.blur_kernel % 2 == 0:
        raise RequestError(f"augment.blur_kernel is {config.augment.blur_kernel}; it must be odd")
    if optimizer.nesterov and (optimizer.name != "sgd" or optimizer.momentum == 0):
        raise RequestError("optimizer.nesterov needs sgd with momentum")
    for name, group in config.views.named().items():
        _check_views(f"views.{name}", group)


def _check_views(name: str, group: ViewGroup) -> None:
    """Refuse settings of one view group that do not go together."""
    low, high = group.scale
    if low > high or (low == 0 < high):
        raise RequestError(f"{name}.scale is {list(group.scale)}; give a smallest and a largest share, or 0 0")
    if not group.rotated:
        for option in ("every_angle", "upright", "angle_embedding"):
            if getattr(group, option):
                raise RequestError(f"{name}.{option} needs views that are rotated; give --{name}.rotated")
    elif len(group.angles) < 2 or len(set(group.angles)) < len(group.angles):
        raise RequestError(f"{name}.angles is {list(group.angles)}; give at least two different angles")
    if group.angle_embedding and not group.online:
        raise RequestError(f"{name}.angle_embedding needs views that base methods learn from; give --{name}.online")
    if group.every_angle and group.upright:
        raise RequestError(f"{name}.upright needs views with one random angle each, not {name}.every_angle")
