"""From a configuration to modules: network, objective and loader, on a device and over all processes."""

from __future__ import annotations

import copy
import warnings
from functools import partial

import torch
from torch.nn.parallel import DistributedDataParallel

from effssl.augment.options import Augment, ViewGroup
from effssl.config import Config
from effssl.data import Data
from effssl.data.images import Images
from effssl.data.joined import images_per_epoch
from effssl.data.loader import Batching, ViewLoader, ViewSpec
from effssl.data.sample import sampler
from effssl.network.encoders import Encoder, build_encoder, refused
from effssl.network.network import Network
from effssl.network.options import DERIVED_STEMS
from effssl.network.patches import PatchEncoder
from effssl.network.small import SmallEncoder
from effssl.objectives.objective import Objective, build_terms, groups_read
from effssl.objectives.options import TeacherOptions
from effssl.objectives.term import RunInfo
from effssl.recipes.resolve import Plan
from effssl.runtime.distribution import local_rows
from effssl.runtime.errors import RequestError
from effssl.runtime.randomness import generator, seeded
from effssl.training.clock import Clock
from effssl.training.teacher import FrozenTeacher, named, open_encoder

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def build_network(config: Config) -> Network:
    """The network of a run; its initial weights depend on the seed and on nothing else."""
    with seeded(config.seed, "init", "encoder"):
        encoder = build_encoder(config.encoder, config.image_size, config.stem, config.augment.pixels.channels)
    return add_projector(encoder, config)


def add_projector(encoder: Encoder, config: Config) -> Network:
    """f and g as one network."""
    with seeded(config.seed, "init", "projector"):
        return Network(encoder, config.projector)


def build_objective(
    plan: Plan, device: torch.device, data: Data | None = None, network: Network | None = None
) -> Objective:
    """Network (the configured one, if none is given) and terms on the device, in channels-last memory format."""
    config = plan.config
    groups = groups_read(config.views.named(), list(plan.weights))
    info = RunInfo(
        groups=groups,
        seed=config.seed,
        image_size=config.image_size,
        batch_size=config.batch_size,
        steps_per_epoch=Clock.of(config, images_per_epoch(data.train) if data else config.batch_size).steps_per_epoch,
        labels=data.train.labels if data else None,
        classes=len(data.train.classes) if data else 0,
        sample=sampler(data.train, config.image_size, config.augment, config.seed) if data else None,
        teacher=partial(open_teacher, data.train, config.augment, device) if data else None,
    )
    if network is None:
        network = build_network(config)
        derive_filters(network.encoder, config, info)
    note = plan.start.load_into(network, config.start_projector) if plan.start is not None else ""
    if config.freeze:
        network.encoder.freeze(config.freeze, config.encoder)
    check_sides(config, groups, network)
    terms = build_terms({name: getattr(config, name) for name in plan.weights}, network, info)
    objective = Objective(network, terms, plan.weights, groups)
    objective.config, objective.start_note = config, note
    objective = objective.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if config.compile:
        for module in objective.modules():
            if isinstance(module, Encoder):
                module.compile(dynamic=False)  # one program per size of views; names of weights stay as they are
    if config.precision in PRECISIONS:  # auto is settled by a run; what only counts or tries steps stays in float32
        objective.autocast = partial(torch.autocast, device.type, PRECISIONS[config.precision])
    return objective


def open_teacher(
    images: Images, augment: Augment, device: torch.device, term: str, options: TeacherOptions
) -> FrozenTeacher:
    """A finished encoder on the device, for a term that learns from it."""
    with named(term):
        return FrozenTeacher(open_encoder(options).to(device), images, augment)


def derive_filters(encoder: Encoder, config: Config, info: RunInfo) -> None:
    """Compute the filters of an encoder that has them from a sample of the training images."""
    backbone = encoder.backbone
    derived = isinstance(backbone, SmallEncoder) and backbone.stem in DERIVED_STEMS
    if not (derived or isinstance(backbone, PatchEncoder)):
        return
    if info.sample is None:
        raise RequestError(f"the filters of {config.encoder} are computed from the training images; give data")
    assert isinstance(backbone, (SmallEncoder, PatchEncoder))
    backbone.derive(info.sample(), generator(config.seed, "filters"), config.train_stem)


def check_sides(config: Config, groups: dict[str, ViewGroup], network: Network) -> None:
    """Refuse view groups whose size the encoder does not take."""
    clock = Clock.of(config, images=config.batch_size)
    sides = {name: group.side(config.image_size) for name, group in groups.items()} | {"growing": clock.side(0)}
    encoder = copy.deepcopy(network.encoder).eval()
    device = next((p.device for p in encoder.parameters()), None)
    for name, side in sides.items():
        if side != config.image_size:
            with refused(f"{config.encoder} (views.{name})", side), torch.no_grad():
                encoder(torch.zeros(2, config.augment.pixels.channels, side, side, device=device))


def build_loader(
    objective: Objective, images: Images, device: torch.device, clock: Clock, rows: slice | None = None
) -> ViewLoader:
    """Batches of the views that an objective reads; of every batch this process creates its rows, or those given."""
    config: Config = objective.config
    spec = ViewSpec(config.augment, objective.groups, config.image_size, objective.reads_clean, config.compile)
    rows = local_rows(config.batch_size) if rows is None else rows
    batching = Batching(config.batch_size, config.seed, rows, workers=config.workers)
    return ViewLoader(images, spec, batching, device, clock.side)


def in_parallel(objective: Objective) -> DistributedDataParallel:
    """Average gradients over processes.

    Buffers are not broadcast: queues are the same everywhere anyway, and statistics of keys are meant to be each
    process's own. Weights may be unused (a projector where every term reads h), which torch has to know.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # broadcast_buffers has another name in the newest torch
        parallel = DistributedDataParallel(objective, broadcast_buffers=False, find_unused_parameters=True)
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")  # a matter of speed on GPUs
    warnings.filterwarnings("ignore", "find_unused_parameters=True was specified")  # most objectives use all of them
    return parallel
