"""A plan becomes modules: network and terms on a device, and as many processes as there are."""

from __future__ import annotations

import copy
import warnings
from functools import partial

import torch
from torch.nn.parallel import DistributedDataParallel

from effssl.config import Config
from effssl.data import Data
from effssl.network import Network, build_network
from effssl.network.encoders import Encoder, refused
from effssl.objectives.objective import Objective, Setting, build_objective
from effssl.objectives.options import OWN
from effssl.recipes import Plan
from effssl.runtime.distribution import world

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def side_of_views(config: Config, done: float) -> int:
    """Side of the views at a point of the run: the image size, or a multiple of 4 that grows up to it."""
    schedule, size = config.schedule, config.image_size
    if done >= schedule.grow_until or schedule.grow_from == 1:
        return size
    grown = done / schedule.grow_until if schedule.grow == "steadily" else 0.0
    share = schedule.grow_from + (1 - schedule.grow_from) * grown
    return max(min(8, size), min(size, 4 * round(share * size / 4)))


def make_objective(
    plan: Plan, device: torch.device, data: Data | None = None, network: Network | None = None
) -> Objective:
    """Network (the config's, if none is given) and terms on the device, in the memory layout convolutions like best."""
    config = plan.config
    setting = Setting(
        seed=config.seed,
        alone=not plan.instance,
        image_size=config.image_size,
        batch_size=config.batch_size,
        together=config.batch_size // (world() * config.accumulate),
        steps_per_epoch=len(data.train) // config.batch_size if data else 1,
        labels=data.train.labels if data else None,
        classes=len(data.train.classes) if data else 0,
    )
    network = network or build_network(config)
    first = side_of_views(config, 0.0)
    if first != config.image_size:
        with (
            refused(f"{config.encoder} (views grow with the run; --form paper keeps one size)", first),
            torch.no_grad(),
        ):
            copy.deepcopy(network.encoder).eval()(torch.zeros(2, 3, first, first))
    objective = build_objective(config, plan.weights, network, setting)
    objective = objective.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if config.compile:
        for module in objective.modules():
            if isinstance(module, Encoder):
                module.compile(dynamic=False)  # one program per size of views; names of weights stay as they are
    if plan.config.precision != "float32":
        objective.autocast = partial(torch.autocast, device.type, PRECISIONS[plan.config.precision])
    return objective


def in_parallel(objective: Objective, plan: Plan) -> DistributedDataParallel:
    """Average gradients over processes.

    Buffers are not broadcast: queues are the same everywhere anyway, and statistics of keys are meant to be each
    process's own. Weights may be unused (a projector when only `supervised` is there), which torch has to be told.
    """
    rotation = plan.config.rotation
    on_z = set(plan.weights) & {"simclr", "byol", "simsiam", "swav", "moco", "supcon"}
    plain = "rotation" not in plan.weights or (rotation.form == "ce" and not rotation.shared)
    all_used = (
        plain
        and not set(plan.weights) & set(OWN)
        and bool(on_z or (plan.weights.keys() == {"rotation"} and rotation.on == "z"))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # broadcast_buffers has another name in the newest torch
        made = DistributedDataParallel(objective, broadcast_buffers=False, find_unused_parameters=not all_used)
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")  # a matter of speed on GPUs
    return made
