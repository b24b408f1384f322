"""Rotation prediction, a label that is always right (Gidaris et al. 2018), as a task beside a base method."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effssl.augment.crop import resize
from effssl.augment.rotate import rotate
from effssl.data.views import Needs, Own, Views
from effssl.network import Network
from effssl.network.encoders import refused
from effssl.network.heads import mlp
from effssl.objectives.objective import Outcome, Pretext, Setting, Step, frozen_statistics
from effssl.objectives.options import Rotation as Options
from effssl.objectives.supcon import sup_con
from effssl.runtime.distribution import gather
from effssl.runtime.errors import RequestError

QUARTERS = (0.0, 90.0, 180.0, 270.0)


class Rotation(Pretext):
    """Mean cross-entropy of r(g(f(rotated view))) against its angle, over all rotated views.

    Rotated views have a pass of their own, so the other terms' batch statistics stay as they are.
    """

    def __init__(self, options: Options, network: Network, setting: Setting) -> None:
        super().__init__(options, network, setting)
        self.mode = ("all" if setting.alone else "two") if options.views == "auto" else options.views
        self.count = 2 if self.mode in ("two", "given") else 1  # views that are rotated
        if len(options.angles) < 2 or len(set(options.angles)) < len(options.angles):
            raise RequestError(f"rotation.angles {options.angles} must be at least two different angles")
        self.size = round(options.size * setting.image_size) if 0 < options.size < 1 else round(options.size)
        if self.size and self.size != setting.image_size:
            with refused("rotation.size", self.size), torch.no_grad():
                copy.deepcopy(network.encoder).eval()(torch.zeros(2, 3, self.size, self.size))
        if 0 < options.scale[0] <= options.scale[1]:
            self.needs = Needs(large=0, own=Own(self.count, self.size or setting.image_size, options.scale))
        elif options.scale == (0, 0):
            self.needs = Needs(large=self.count)
        else:
            raise RequestError(f"rotation.scale {options.scale} is a smallest and a largest share, or 0 0")
        if self.mode == "given" and (options.scale[0] or options.share < 1):
            raise RequestError("rotation.views given takes the views as they are, without scale or share")
        if options.share < 1 and options.form != "ce":
            raise RequestError("rotation.share goes with form ce")
        if int(setting.together * options.share) < 2:
            raise RequestError(f"rotation.share {options.share:g} of {setting.together} images leaves fewer than two")
        if self.mode == "given" and (options.angles != QUARTERS or options.noise or options.form == "cosine"):
            raise RequestError("rotation.views given takes quarter turns as they are, without noise or form cosine")
        stages = network.stages()
        places = {"z": len(stages), "h": len(stages) - 1, "block1": 2, "block2": 3, "block3": 4}
        self.depth = places[options.on]  # stages that lead to the head's input
        if options.on.startswith("block") and (len(stages) < 6 or options.shared or self.mode == "given"):
            raise RequestError(f"rotation.on {options.on} needs a ResNet, and neither rotation.shared nor views given")
        if options.upright and self.mode in ("all", "given"):
            raise RequestError("rotation.upright needs views that are rotated by an angle of their own each")
        if options.for_base != "nothing":
            if setting.alone:
                raise RequestError("rotation.for_base needs a base method, e.g. byol+rotation")
            self.turn = nn.Embedding(len(options.angles), network.z_dim)
            nn.init.zeros_(self.turn.weight)
        self.r = mlp([self._width(network, setting), options.hidden or network.hidden, len(options.angles)])
        if options.shared:
            if not 0 < options.shared <= self.depth:
                raise RequestError(
                    f"rotation.shared is {options.shared}; this network has {self.depth} stages to share"
                )
            self.branch = nn.Sequential(*copy.deepcopy(stages[options.shared : self.depth]))

    def prepare(self, step: Step) -> None:
        """Let base methods learn from rotated views too: from z + e(angle), where e is learned and begins at zero.

        So they need not find the same z for an image and its rotation, which would be against the task.
        """
        if self.options.for_base == "nothing":
            return
        _, labels, z = self._made(step)
        step.rotated = labels, z
        step.more = z + self.turn(labels.to(z.device, non_blocking=True))
        step.one_sided = self.options.for_base == "instead"

    def loss(self, step: Step) -> Outcome:
        if self.mode == "given":
            return self._classify(step, step.z() if self.options.on == "z" else step.h(), step.views.angle)
        labels, features = step.rotated or self._made(step)[1:]
        if self.options.form == "cosine":
            return Outcome(self._cosine(step, features, labels))
        return self._classify(step, features, self._noisy(step, labels))

    def judged(self, step: Step) -> tuple[Tensor, Tensor, Tensor | None]:
        """The rotated views of a step, their places in the angle set, and the head's logits, if the loss has a head."""
        if self.mode == "given":
            assert step.views.angle is not None
            x, labels = torch.cat(step.views.large), step.views.angle
            features = step.z() if self.options.on == "z" else step.h()
        else:
            x, labels, features = self._made(step)
        return x, labels, self._logits(step, features) if self.options.form == "ce" else None

    def _made(self, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """The rotated views of a step, their places in the angle set, and what the network makes of them."""
        labels = self._labels(step)
        x = self._rotated(step, labels)
        return x, labels, self._features(step, x)

    def _logits(self, step: Step, features: Tensor) -> Tensor:
        return step.run(self.r, F.normalize(features, dim=1) if self.options.normalize else features)

    def _width(self, network: Network, setting: Setting) -> int:
        """Width of the head's input."""
        if self.options.on in ("z", "h"):
            return network.z_dim if self.options.on == "z" else network.h_dim
        side = self.size or setting.image_size
        with torch.no_grad():
            part = copy.deepcopy(network).eval()
            return part.run(torch.zeros(2, 3, side, side), stop=self.depth).shape[1]

    def chosen(self, views: Views) -> Tensor:
        """Which of a process's images are rotated, on the CPU: `share` of them, evenly over the batch of all."""
        place = torch.arange(views.total)[views.rows].double()
        share = self.options.share
        return (((place + 1) * share + 1e-9).floor() > (place * share + 1e-9).floor()).nonzero().squeeze(1)

    def _labels(self, step: Step) -> Tensor:
        """The position in the angle set of every rotated view, (views·rows) on the CPU."""
        views, angles, rows = step.views, len(self.options.angles), self.chosen(step.views)
        if self.mode == "all":
            return torch.arange(angles).repeat_interleave(len(rows))
        drawn = torch.randint(angles, (self.count, views.total), generator=views.generator("angles"))
        if self.options.upright:
            drawn *= torch.rand(drawn.shape, generator=views.generator("upright")) >= self.options.upright
        return drawn[:, views.rows][:, rows].reshape(-1)

    def _rotated(self, step: Step, labels: Tensor) -> Tensor:
        views, rows = (step.views.own or step.views.large)[: self.count], self.chosen(step.views)
        if len(rows) < len(step.views.index):
            rows = rows.to(views[0].device, non_blocking=True)
            views = [view.index_select(0, rows) for view in views]
        x = torch.cat(views)
        if self.size and self.size != x.shape[-1]:
            x = resize(x, self.size)  # before rotating: fewer pixels to move
        x = x.repeat(len(labels) // len(x), 1, 1, 1)
        return rotate(x, labels, self.options.angles, self.options.crop == "per_angle")

    def _features(self, step: Step, x: Tensor) -> Tensor:
        """The head's input: through the network, or through its shared stages and an own copy of the rest."""
        views = 1 if self.options.joint_pass or self.mode == "all" else self.count
        return torch.cat([self._pass(step, part) for part in x.chunk(views)])

    def _pass(self, step: Step, x: Tensor) -> Tensor:
        with frozen_statistics(step.network, not self.options.update_stats):
            if self.options.shared:
                return step.run(lambda y: self.branch(step.network.run(y, stop=self.options.shared)), x)
            if self.options.on.startswith("block"):
                return step.run(lambda y: step.network.run(y, stop=self.depth).mean((2, 3)), x)
            h = step.run(step.network.f, x)
            return step.run(step.network.g, h) if self.options.on == "z" else h

    def _noisy(self, step: Step, labels: Tensor) -> Tensor:
        """With probability `noise` a label is replaced, drawn afresh for every view."""
        if not self.options.noise:
            return labels
        views, angles, rows = step.views, len(self.options.angles), self.chosen(step.views)
        count = len(labels) // len(rows)
        g = views.generator("angle noise")
        wrong = (torch.rand(count, views.total, generator=g) < self.options.noise)[:, views.rows][:, rows].reshape(-1)
        least = int(self.options.noise_to == "other")
        shift = torch.randint(least, angles, (count, views.total), generator=g)[:, views.rows][:, rows].reshape(-1)
        return torch.where(wrong, (labels + shift) % angles, labels)

    def _classify(self, step: Step, features: Tensor, labels: Tensor | None) -> Outcome:
        if labels is None:
            raise RequestError("rotation.views given needs views that are rotated already: --augment.rotate")
        labels = labels.to(features.device, non_blocking=True)
        if self.options.form == "supcon":
            groups = len(labels) // len(step.views.index)
            everyone = gather(features, groups), gather(labels, groups)
            return Outcome(sup_con(*everyone, self.options.temperature))
        logits = self._logits(step, features)
        right = (logits.detach().argmax(1) == labels).float().mean()
        loss = F.cross_entropy(logits, labels)
        if self.options.share < 1:  # processes may have unequal parts, and the mean over all is meant
            everywhere = int(step.views.total * self.options.share + 1e-9) * (
                len(labels) // len(self.chosen(step.views))
            )
            parts = step.views.total / len(step.views.index)  # processes, times the parts of a batch computed in turn
            loss = loss * (len(labels) * parts / everywhere)
        return Outcome(loss, {"rotation_accuracy": right})

    def _cosine(self, step: Step, features: Tensor, labels: Tensor) -> Tensor:
        """Mean cosine between each rotated view and the same view under another angle: to be minimized."""
        views, angles = step.views, len(self.options.angles)
        count = len(labels) // len(views.index)
        g = views.generator("second angles")
        shift = torch.randint(1, angles, (count, views.total), generator=g)[:, views.rows].reshape(-1)
        other = (labels + shift) % angles
        return F.cosine_similarity(features, self._features(step, self._rotated(step, other)), dim=1).mean()
