"""From a request to a plan: defaults < recipe < file < flags, then everything is checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from effssl.augment.options import ViewGroup
from effssl.config import Config, config_type
from effssl.network.options import DERIVED_STEMS, PATCH_DIM, ReadoutOptions, patch_filters, pixels_side
from effssl.objectives.expression import parse
from effssl.recipes.budgets import RUNG, parse_budget, recipe_for_budget
from effssl.recipes.catalog import choose, is_transformer, published_form, read, score
from effssl.runtime.errors import RequestError
from effssl.schema import build, check, merge, read_yaml, written_by

if TYPE_CHECKING:
    from effssl.network.start import StartingWeights

NOT_MEASURED = "not measured"  # of a recipe's score
CONTINUED = 4  # a run that starts from trained weights has a recipe's epochs divided by this


@dataclass(frozen=True)
class Plan:
    """A resolved request: the complete config, the weight of each term that takes part, and notes for the user."""

    config: Config
    weights: dict[str, float]
    notes: list[str] = field(default_factory=list)
    start: StartingWeights | None = None  # what the network starts from; None is random


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


def resolve(flags: Mapping[str, Any], file: Path | None = None, accelerator: bool = False, speed: float = 1.0) -> Plan:
    """Turn flags (a nested mapping of what was really given) and a config file into a complete plan.

    `speed` of this machine, relative to the one that recipes for budgets were measured on, scales a time budget.

    >>> plan = resolve({"data": "cifar10", "objective": "simsiam + 0.1*rotation", "epochs": 5})
    >>> plan.weights, plan.config.recipe
    ({'simsiam': 1.0, 'rotation': 0.1}, 'cpu-simsiam-efficient')
    """
    request = _read(flags, file)
    asked = request.over(config_type()())
    # Terms of weight 0 are left out before a recipe is chosen: byol+0*rotation is byol.
    name = _choose_recipe(asked, request, accelerator, speed)
    base = asked if request.complete else build(config_type(), read(name), f"recipe {name}")
    config = dataclasses.replace(request.over(base), recipe=name)
    notes = _recipe_notes(name, asked.recipe)
    if accelerator and _on_dial(merge(request.file, request.flags)):
        notes.append("recipes by budget are for CPUs; here the budget decides the number of epochs alone")
    config = _scale_lr(config, base, request, notes)
    notes.extend(_transformer_note(config, request))
    config = _shorten_continued(config, request, notes)
    config = _shorten_warmup(config, base, request, notes)
    config = _whiten_patches(config, request)
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


def _choose_recipe(asked: Config, request: _Given, accelerator: bool, speed: float) -> str:
    """The recipe that was asked for, or the one that fits."""
    if asked.recipe != "auto":
        return asked.recipe
    if not accelerator and _on_dial(merge(request.file, request.flags)):
        return recipe_for_budget(asked.data, parse_budget(asked.budget), speed)
    return choose(asked.data, _nonzero(asked), accelerator, asked.encoder)


def uses_dial(flags: Mapping[str, Any], file: Path | None = None) -> bool:
    """Whether a request leaves all but its time to us: a budget, and no recipe, objective, encoder or weights."""
    return _on_dial(merge(read_yaml(file) if file else {}, flags))


def _on_dial(given: Mapping[str, Any]) -> bool:
    asks_for_more = (
        given.keys() & {"objective", "encoder", "start_from", "versions"} or given.get("recipe", "auto") != "auto"
    )
    return bool(given.get("budget")) and not asks_for_more


def _whiten_patches(config: Config, request: _Given) -> Config:
    """k-means patches are compared by their whitened features, unless told otherwise."""
    given = merge(request.file, request.flags)
    if not patch_filters(config.encoder):
        return config
    readout = build(ReadoutOptions, given.get("readout", {}), "readout", ReadoutOptions(maps=False, dim=PATCH_DIM))
    return dataclasses.replace(config, whiten=given.get("whiten", "on"), readout=readout)


def _recipe_notes(name: str, asked: str) -> list[str]:
    if RUNG.fullmatch(name) and asked == "auto":  # the budget says so itself, once its steps are timed
        return [] if score(name) == NOT_MEASURED else [f"to expect: {score(name)}"]
    published = published_form(name) if asked == "auto" else ""
    return [f"recipe {name}" + (f"; --recipe {published} has the published form of rotation" if published else "")]


def _scale_lr(config: Config, base: Config, request: _Given, notes: list[str]) -> Config:
    """A recipe's learning rate holds for its batch size: proportional to it, or for adamw and muon to its root."""
    given, optimizer = merge(request.file, request.flags), config.optimizer
    if optimizer.name != base.optimizer.name and "lr" not in given:
        suited = "give --lr too, e.g. 0.001 for adamw, 0.02 for muon"
        notes.append(f"lr {base.lr:g} is one for {base.optimizer.name}; with {optimizer.name} {suited}")
    old, new = base.batch_size, config.batch_size
    if new == old:
        return config

    def scaled(name: str, lr: float) -> float:
        by_root = optimizer.name in ("adamw", "muon")
        result = lr * math.sqrt(new / old) if by_root else lr * new / old
        how = ", by the square root of their ratio" if by_root else ""
        notes.append(f"{name} {lr:g} holds for batch {old}; scaled to {result:.3g} for batch {new}{how}")
        return result

    if "lr" not in given:
        config = dataclasses.replace(config, lr=scaled("lr", base.lr))
    if optimizer.name == "muon" and "adamw_lr" not in given.get("optimizer", {}):
        adamw_lr = scaled("optimizer.adamw_lr", base.optimizer.adamw_lr)
        config = dataclasses.replace(config, optimizer=dataclasses.replace(optimizer, adamw_lr=adamw_lr))
    return config


def _transformer_note(config: Config, request: _Given) -> list[str]:
    """Say so where a transformer gets an optimizer for convolutional networks that nobody asked for."""
    optimizer = config.optimizer.name
    asked = request.complete or "name" in merge(request.file, request.flags).get("optimizer", {})
    if asked or optimizer not in ("sgd", "lars") or not is_transformer(config.encoder):
        return []
    trained = f"{config.encoder} is trained by {optimizer} with lr {config.lr:g}, as recipe {config.recipe} says"
    return [f"{trained}; what fits a transformer is --optimizer.name adamw --lr 0.0005"]


def _shorten_continued(config: Config, request: _Given, notes: list[str]) -> Config:
    """Weights that are trained already need fewer epochs than random ones, for which a recipe is made."""
    if not config.start_from or config.budget or "epochs" in merge(request.file, request.flags):
        return config
    epochs = math.ceil(config.epochs / CONTINUED)
    notes.append(f"{epochs} epochs, a quarter of the recipe's {config.epochs}: the weights are trained already")
    return dataclasses.replace(config, epochs=epochs)


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
    _check_restarts(config)
    _check_start(config)
    if config.augment.blur_kernel and config.augment.blur_kernel % 2 == 0:
        raise RequestError(f"augment.blur_kernel is {config.augment.blur_kernel}; it must be odd")
    if optimizer.nesterov and (optimizer.name not in ("sgd", "muon") or optimizer.momentum == 0):
        raise RequestError("optimizer.nesterov needs sgd with momentum, or muon with momentum")
    if config.train_stem and config.stem not in DERIVED_STEMS:
        raise RequestError("train_stem needs a stem that is computed from the images: --stem pca or kmeans")
    if pixels_side(config.encoder):
        raise RequestError(
            f"{config.encoder} has nothing to train; effssl eval knn {config.encoder} --data … evaluates it"
        )
    for name, group in config.views.named().items():
        _check_views(f"views.{name}", group)


def _check_restarts(config: Config) -> None:
    restarts = config.schedule.restarts
    if list(restarts) != sorted(set(restarts)) or (restarts and restarts[-1] >= config.epochs):
        raise RequestError(f"schedule.restarts is {list(restarts)}; give rising epochs below {config.epochs}")
    if restarts and config.budget:
        raise RequestError("schedule.restarts counts epochs, whose number a time budget decides; give --epochs")


def _check_start(config: Config) -> None:
    if config.start_from and patch_filters(config.encoder):
        raise RequestError(f"{config.encoder} is computed from the images; leave --start-from out")
    if config.start_projector and not config.start_from:
        raise RequestError("--start-projector needs --start-from, the run whose projector is meant")


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
