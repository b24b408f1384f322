"""Terms and views in a loop of your own: what `pretrain` is made of, without its loop, its schedule and its files.

objective = effssl.objective("byol+rotation", backbone, image_size=32, batch_size=64)
loss, metrics = objective(objective.views(first, second, step=step))
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from effssl.data import Data, open_data
from effssl.data.loader import ViewLoader
from effssl.network import Network
from effssl.network.encoders import Encoder, feature_size
from effssl.objectives.objective import Objective
from effssl.recipes import resolve
from effssl.runtime.device import pick_device
from effssl.runtime.distribution import share
from effssl.runtime.errors import RequestError
from effssl.runtime.randomness import seeded
from effssl.training.build import make_objective, side_of_views
from effssl.training.pretraining import fit_to_data


def objective(
    expression: str, encoder: nn.Module | str = "", data: str | Data = "", *, device: str = "", **settings: Any
) -> Objective:
    """L = Σ wₖ·Lₖ as a module: `loss, metrics = objective(views)`, and `after_update` after every optimizer step.

    Args:
        expression: as in `pretrain`, e.g. "byol+rotation"
        encoder: a module of your own, N×3×S×S → N×width, or a name; default: the recipe's
        data: what is trained on, where a term uses labels or the size of views is to be taken from it
        device: where the weights live; default: where the module is, else the CPU
        settings: as in `pretrain`: image_size, batch_size, epochs, seed, projector={"out": 64}, byol={"momentum": 0.9};
            a recipe whose views grow with the run does so only if `epochs` tells how long that is
    """
    here = next((p.device for p in encoder.parameters()), None) if isinstance(encoder, nn.Module) else None
    place = pick_device(device or str(here or "cpu"))
    flags = settings | {"objective": expression, "data": data if isinstance(data, str) else data.name}
    if "epochs" not in settings:  # nobody knows how long the loop is, so views cannot grow with it
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
        raise RequestError("how large are the views? give image_size, or data to take it from")
    network = None
    if isinstance(encoder, nn.Module):
        width = feature_size(encoder, plan.config.image_size, type(encoder).__name__)
        with seeded(plan.config.seed, "init", "projector"):
            network = Network(Encoder(encoder, width), plan.config.projector)
    return make_objective(plan, place, opened, network)


def view_loader(objective: Objective, data: str | Data) -> ViewLoader:
    """Batches of the views that an objective's terms need, as `pretrain` makes them: `for views in loader.epoch(0)`.

    In a job of many processes each gets its share of every batch.
    """
    config = objective.config
    opened = open_data(data, config.labels, config.subset, config.classes) if isinstance(data, str) else data
    if len(opened.train) < config.batch_size:
        raise RequestError(f"a batch of {config.batch_size} is larger than the set of {len(opened.train)} images")
    total = config.epochs * (len(opened.train) // config.batch_size)
    return ViewLoader(
        opened.train, config.augment, objective.needs, config.batch_size, config.image_size, config.seed,
        next(objective.parameters()).device, config.workers, rows=share(config.batch_size),
        done=lambda step: min(1.0, step / total), grow=partial(side_of_views, config),
    )  # fmt: skip
