"""Objectives on tiny photographs, for the tests of every term."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.data import Data
from effssl.data.views import Views
from effssl.objectives.objective import Objective
from effssl.recipes import Plan, resolve
from effssl.training.build import make_objective
from effssl.training.loop import Trainer

CPU = torch.device("cpu")
SIZE, BATCH = 24, 32


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a, b, dim=1).mean())


def plan(objective: str, **flags) -> Plan:
    first = objective.split("+")[0].strip()
    recipe = f"cpu-{first}" if first in ("byol", "simclr", "simsiam", "rotation") else "cpu-byol"
    base = {"data": "x", "recipe": recipe, "objective": objective, "form": "paper", "image_size": SIZE}
    base |= {"batch_size": BATCH, "lr": 0.05}
    return resolve(base | flags)


def make(objective: str, data: Data | None = None, **flags) -> Objective:
    return make_objective(plan(objective, **flags), CPU, data)


def first_views(data: Data, objective: str, **flags) -> Views:
    return next(Trainer(plan(objective, **flags), data, CPU).loader.epoch(0))


def some_views(tiny_photos: Tensor, step: int = 0) -> Views:
    x = tiny_photos[:BATCH].float() / 127.5 - 1
    noise = torch.randn(2, *x.shape, generator=torch.Generator().manual_seed(step)) * 0.1
    return Views([x + noise[0], (x + noise[1]).flip(-1)], torch.arange(BATCH), step=step, total=BATCH)
