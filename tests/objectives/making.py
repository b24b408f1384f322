"""Objectives on tiny photographs, for the tests of every term."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.data import Data
from effssl.data.views import Views
from effssl.objectives.objective import Objective
from effssl.recipes.resolve import Plan, resolve
from effssl.training.build import build_objective
from effssl.training.trainer import Trainer

CPU = torch.device("cpu")
SIZE, BATCH = 24, 32
ONE_SIDED = {"large": {"count": 1, "target": False}, "target": {"count": 1}}
ROTATED_ONLINE = {"copy_of": "", "scale": [0.2, 1.0], "online": True, "angle_embedding": True}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a, b, dim=1).mean())


def plan(objective: str, **flags) -> Plan:
    first = objective.split("+")[0].strip()
    recipe = f"cpu-{first}" if first in ("byol", "simclr", "simsiam", "rotation") else "cpu-byol"
    base = {"data": "x", "recipe": recipe, "objective": objective, "image_size": SIZE}
    return resolve(base | {"batch_size": BATCH, "lr": 0.05} | flags)


def make(objective: str, data: Data | None = None, **flags) -> Objective:
    return build_objective(plan(objective, **flags), CPU, data)


def trainer_of(objective: str, data: Data, **flags) -> Trainer:
    return Trainer(plan(objective, **flags), data, CPU)


def first_views(data: Data, objective: str, **flags) -> Views:
    return next(iter(trainer_of(objective, data, **flags).loader.epoch(0)))


def some_views(objective: Objective, tiny_photos: Tensor, step: int = 0) -> Views:
    """Views of an objective made from two noisy versions of photographs, one of them flipped."""
    x = tiny_photos[:BATCH].float() / 127.5 - 1
    noise = torch.randn(2, *x.shape, generator=torch.Generator().manual_seed(step)) * 0.1
    index = torch.arange(BATCH)
    return objective.views(x + noise[0], (x + noise[1]).flip(-1), step=step, index=index)


def passes_of(objective: Objective) -> list[tuple[int, int, bool]]:
    """Images, side and whether there is a gradient, of every pass through the encoder from now on."""
    seen: list[tuple[int, int, bool]] = []
    objective.network.encoder.register_forward_hook(
        lambda _, args, out: seen.append((len(args[0]), args[0].shape[-1], out.requires_grad))
    )
    return seen


def losses_of_epochs(trainer: Trainer, epochs: int, name: str = "loss") -> Iterator[float]:
    """Mean loss of each epoch."""
    for epoch in range(epochs):
        values = []
        for views in trainer.loader.epoch(epoch):
            loss, metrics = trainer.step(views)
            values.append(float(({"loss": loss} | metrics)[name]))
        yield sum(values) / len(values)
