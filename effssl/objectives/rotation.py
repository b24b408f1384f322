"""Rotation prediction, a label that is always right (Gidaris et al. 2018), as a task beside a base method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

from effssl import config
from effssl.augment.crop import resize
from effssl.augment.rotate import rotate_quarters
from effssl.network import Network
from effssl.network.heads import mlp
from effssl.objectives.objective import Needs, Outcome, Setting, Step, Term

ANGLES = 4  # 0°, 90°, 180°, 270°; the label is the number of quarter turns


class Rotation(Term):
    """Mean cross-entropy of r(g(f(rotated view))) against its angle, over all rotated views.

    Rotated views have a pass of their own, so the other terms' batch statistics stay as they are.
    """

    def __init__(self, options: config.Rotation, network: Network, setting: Setting) -> None:
        super().__init__(options, network, setting)
        self.mode = ("all" if setting.alone else "two") if options.views == "auto" else options.views
        self.needs = Needs(large=2 if self.mode == "two" else 1)
        inputs = network.z_dim if options.on == "z" else network.h_dim
        self.r = mlp([inputs, options.hidden or network.hidden, ANGLES])

    def loss(self, step: Step) -> Outcome:
        views = step.views
        x = torch.cat(views.large[: self.needs.large])
        if self.options.size and self.options.size != x.shape[-1]:
            x = resize(x, self.options.size)  # before rotating, which commutes with it: fewer pixels to move
        if self.mode == "all":
            turns = torch.arange(ANGLES).repeat_interleave(len(x))
            x = x.repeat(ANGLES, 1, 1, 1)
        else:
            drawn = torch.randint(ANGLES, (self.needs.large, views.total), generator=views.generator("angles"))
            turns = drawn[:, views.rows].reshape(-1)
        x = rotate_quarters(x, turns)
        with frozen_statistics(step.network, not self.options.update_stats):
            features = step.run(step.network.f, x)
            if self.options.on == "z":
                features = step.run(step.network.g, features)
        logits = step.run(self.r, features)
        turns = turns.to(logits.device, non_blocking=True)
        right = (logits.detach().argmax(1) == turns).float().mean()
        return Outcome(F.cross_entropy(logits, turns), {"rotation_accuracy": right})


@contextmanager
def frozen_statistics(module: nn.Module, frozen: bool) -> Iterator[None]:
    """Let batch norm use the batch's statistics but leave its running ones as they are."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)] if frozen else []
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0  # running ← 1·running + 0·batch
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
