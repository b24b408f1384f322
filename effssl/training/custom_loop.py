"""Terms and views in a training loop of your own: what `pretrain` is made of, without its schedule and its files.

objective = effssl.objective("byol+rotation", backbone, image_size=32, batch_size=64)
loss, metrics = objective(objective.views(first, second, step=step))
"""

from __future__ import annotations

from typing import Any

from torch import nn

from effssl.data import Data, open_data
from effssl.data.joined import images_per_epoch
from effssl.data.loader import ViewLoader
from effssl.network.encoders import Encoder, feature_size
from effssl.objectives.objective import Objective
from effssl.recipes.resolve import resolve
from effssl.runtime.device import pick_device
from effssl.runtime.errors import RequestError
from effssl.training.build import add_projector, build_loader, build_objective
from effssl.training.clock import Clock
from effssl.training.precision import with_precision
from effssl.training.pretraining import fit_to_data


def objective(
    expression: str, encoder: nn.Module | str = "", data: str | Data = "", *, device: str = "", **settings: Any
) -> Objective:
    """L = Σ wₖ·Lₖ as a module: `loss, metrics = objective(views)`, and `after_update` after every optimizer step.

    Args:
        expression: as in `pretrain`, e.g. "byol+rotation"
        encoder: a module of your own, N×3×S×S → N×width, or a name; default: the recipe's
        data: what is trained on, where a term uses labels or the size of views is to be taken from it
        device: where the weights are stored; default: where the module is, else the CPU
        settings: as in `pretrain`: image_size, batch_size, epochs, seed, projector={"out": 64}, byol={"momentum": 0.9};
            a recipe whose views grow with the run does so only if `epochs` says how long that is; one with precision
            auto is in float32 here, where no steps are tried
    """
    here = next((p.device for p in encoder.parameters()), None) if isinstance(encoder, nn.Module) else None
    place = pick_device(device or str(here or "cpu"))
    if settings.get("precision") == "auto":
        raise RequestError("precision auto is for pretrain, which tries some steps; here choose float32, bf16 or fp16")
    flags = settings | {"objective": expression, "data": data if isinstance(data, str) else data.name}
    if settings.get("start_from"):
        raise RequestError("start_from is for pretrain; here give a module that holds the weights")
    if "epochs" not in settings:  # the length of the loop is not known, so views cannot grow with it
        flags["schedule"] = {"grow_from": 1.0} | settings.get("schedule", {})
    if isinstance(encoder, str) and encoder:
        flags["encoder"] = encoder
    plan = resolve(flags, accelerator=place.type != "cpu")
    opened = data if isinstance(data, Data) else None
    if isinstance(data, str) and data:
        opened = open_data(data, plan.config.labels, plan.config.subset, plan.config.classes)
    if opened is not None:
        plan = fit_to_data(plan, opened)
    elif not plan.config.image_size:
        raise RequestError("the size of the views is not known; give image_size, or data to take it from")
    network = None
    if isinstance(encoder, nn.Module):
        config = plan.config
        channels = config.augment.pixels.channels
        width = feature_size(encoder, config.image_size, type(encoder).__name__, channels)
        network = add_projector(Encoder(encoder, width), plan.config)
    if plan.config.precision == "auto":  # by a recipe
        plan = with_precision(plan, "float32", "steps are not tried in a loop of your own")
    return build_objective(plan, place, opened, network)


def view_loader(objective: Objective, data: str | Data) -> ViewLoader:
    """Batches of the views that an objective's terms read, as `pretrain` makes them: `for views in loader.epoch(0)`.

    In a job of many processes each gets its share of every batch.
    """
    config = objective.config
    opened = open_data(data, config.labels, config.subset, config.classes) if isinstance(data, str) else data
    count = images_per_epoch(opened.train)
    if count < config.batch_size:
        raise RequestError(f"a batch of {config.batch_size} is larger than the set of {count} images")
    clock = Clock.of(config, count)
    return build_loader(objective, opened.train, next(objective.parameters()).device, clock)
