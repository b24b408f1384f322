"""A step whose network is the identity: its views are z themselves. For the tests of what a loss computes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from effssl.augment.options import ViewGroup
from effssl.data.views import Views
from effssl.objectives.objective import term_class
from effssl.objectives.options import TERMS
from effssl.objectives.step import Step
from effssl.objectives.term import RunInfo, Term

IDENTITY: Any = SimpleNamespace(f=lambda x: x, g=lambda x: x, project=lambda x: x)


def large(views: int) -> dict[str, ViewGroup]:
    return {"large": ViewGroup(views, online=True, target=True)}


def step_of(z: dict[str, Tensor] | Tensor, groups: dict[str, ViewGroup] | None = None, step: int = 0) -> Step:
    """z: V×B×D, by group, or of large views that are online and targets."""
    pixels = {"large": z} if isinstance(z, Tensor) else z
    images = next(iter(pixels.values())).shape[1]
    views = Views(torch.arange(images), pixels, step=step, total=images)
    return Step(IDENTITY, views, groups or large(len(pixels["large"])))


def term(name: str, groups: dict[str, ViewGroup] | None = None, **options) -> Term:
    return term_class(name)(TERMS[name].options(**options), IDENTITY, RunInfo(groups=groups or large(2)))


def descend(the_term: Term, z: Tensor, lr: float, steps: int) -> tuple[Tensor, list[float]]:
    """z after steps of Adam on the loss, and the losses on the way."""
    z = z.clone().requires_grad_()
    optimizer = torch.optim.Adam([z], lr)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = the_term.loss(step_of(z, step=step)).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return z.detach(), losses


def almost_collapsed(images: int, dim: int) -> Tensor:
    """Two views of images whose z are all but the same: 2×B×D."""
    return 1 + 0.01 * torch.randn(2, images, dim, generator=torch.Generator().manual_seed(0))
