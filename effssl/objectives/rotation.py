"""Rotation prediction, a label that is always right (Gidaris et al. 2018), as a task beside a base method."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effssl.augment.crop import resize
from effssl.augment.rotate import rotate
from effssl.data.views import Needs
from effssl.distribution import gather
from effssl.errors import RequestError
from effssl.network import Network
from effssl.network.encoders import refused
from effssl.network.heads import mlp
from effssl.objectives.objective import Outcome, Setting, Step, Term
from effssl.objectives.options import Rotation as Options
from effssl.objectives.supcon import sup_con

QUARTERS = (0.0, 90.0, 180.0, 270.0)


class Rotation(Term):
    """Mean cross-entropy of r(g(f(rotated view))) against its angle, over all rotated views.

    Rotated views have a pass of their own, so the other terms' batch statistics stay as they are.
    """

    def __init__(self, options: Options, network: Network, setting: Setting) -> None:
        super().__init__(options, network, setting)
        self.mode = ("all" if setting.alone else "two") if options.views == "auto" else options.views
        self.needs = Needs(large=2 if self.mode in ("two", "given") else 1)
        if len(options.angles) < 2 or len(set(options.angles)) < len(options.angles):
            raise RequestError(f"rotation.angles {options.angles} must be at least two different angles")
        self.size = round(options.size * setting.image_size) if 0 < options.size < 1 else round(options.size)
        if self.size and self.size != setting.image_size:
            with refused("rotation.size", self.size), torch.no_grad():
                copy.deepcopy(network.encoder).eval()(torch.zeros(2, 3, self.size, self.size))
        if self.mode == "given" and (options.angles != QUARTERS or options.noise or options.form == "cosine"):
            raise RequestError("rotation.views given takes quarter turns as they are, without noise or form cosine")
        inputs = network.z_dim if options.on == "z" else network.h_dim
        self.r = mlp([inputs, options.hidden or network.hidden, len(options.angles)])
        stages = network.stages()
        self.depth = len(stages) - (options.on == "h")  # stages that lead to the head's input
        if options.shared:
            if not 0 < options.shared <= self.depth:
                raise RequestError(
                    f"rotation.shared is {options.shared}; this network has {self.depth} stages to share"
                )
            self.branch = nn.Sequential(*copy.deepcopy(stages[options.shared : self.depth]))

    def loss(self, step: Step) -> Outcome:
        if self.mode == "given":
            return self._classify(step, step.z() if self.options.on == "z" else step.h(), step.views.angle)
        labels = self._labels(step)
        x = self._rotated(step, labels)
        features = self._features(step, x)
        if self.options.form == "cosine":
            return Outcome(self._cosine(step, features, labels))
        return self._classify(step, features, self._noisy(step, labels))

    def _labels(self, step: Step) -> Tensor:
        """The position in the angle set of every rotated view, (views·B) on the CPU."""
        views, angles = step.views, len(self.options.angles)
        if self.mode == "all":
            return torch.arange(angles).repeat_interleave(len(views.large[0]))
        drawn = torch.randint(angles, (self.needs.large, views.total), generator=views.generator("angles"))
        return drawn[:, views.rows].reshape(-1)

    def _rotated(self, step: Step, labels: Tensor) -> Tensor:
        x = torch.cat(step.views.large[: self.needs.large])
        if self.size and self.size != x.shape[-1]:
            x = resize(x, self.size)  # before rotating: fewer pixels to move
        x = x.repeat(len(labels) // len(x), 1, 1, 1)
        return rotate(x, labels, self.options.angles, self.options.crop == "per_angle")

    def _features(self, step: Step, x: Tensor) -> Tensor:
        """The head's input: through the network, or through its shared stages and an own copy of the rest."""
        views = 1 if self.options.joint_pass or self.mode == "all" else len(x) // len(step.views.large[0])
        features = torch.cat([self._pass(step, part) for part in x.chunk(views)])
        return F.normalize(features, dim=1) if self.options.normalize else features

    def _pass(self, step: Step, x: Tensor) -> Tensor:
        with frozen_statistics(step.network, not self.options.update_stats):
            if self.options.shared:
                return step.run(lambda y: self.branch(step.network.run(y, stop=self.options.shared)), x)
            h = step.run(step.network.f, x)
            return step.run(step.network.g, h) if self.options.on == "z" else h

    def _noisy(self, step: Step, labels: Tensor) -> Tensor:
        """With probability `noise` a label is replaced, drawn afresh for every view."""
        if not self.options.noise:
            return labels
        views, angles, count = step.views, len(self.options.angles), len(labels) // len(step.views.large[0])
        g = views.generator("angle noise")
        wrong = (torch.rand(count, views.total, generator=g) < self.options.noise)[:, views.rows].reshape(-1)
        least = int(self.options.noise_to == "other")
        shift = torch.randint(least, angles, (count, views.total), generator=g)[:, views.rows].reshape(-1)
        return torch.where(wrong, (labels + shift) % angles, labels)

    def _classify(self, step: Step, features: Tensor, labels: Tensor | None) -> Outcome:
        if labels is None:
            raise RequestError("rotation.views given needs views that are rotated already: --augment.rotate")
        labels = labels.to(features.device, non_blocking=True)
        if self.options.form == "supcon":
            groups = len(labels) // len(step.views.large[0])
            everyone = gather(features, groups), gather(labels, groups)
            return Outcome(sup_con(*everyone, self.options.temperature))
        logits = step.run(self.r, features)
        right = (logits.detach().argmax(1) == labels).float().mean()
        return Outcome(F.cross_entropy(logits, labels), {"rotation_accuracy": right})

    def _cosine(self, step: Step, features: Tensor, labels: Tensor) -> Tensor:
        """Mean cosine between each rotated view and the same view under another angle: to be minimized."""
        views, angles = step.views, len(self.options.angles)
        count = len(labels) // len(views.large[0])
        g = views.generator("second angles")
        shift = torch.randint(1, angles, (count, views.total), generator=g)[:, views.rows].reshape(-1)
        other = (labels + shift) % angles
        return F.cosine_similarity(features, self._features(step, self._rotated(step, other)), dim=1).mean()


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
