"""Distillation: h of a small encoder predicts the features of a larger one that is finished. After Hinton et al. 2015.

The relational loss compares images with each other in place of features with features. Tung & Mori 2019.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effssl.network.network import Network
from effssl.objectives.options import DistillOptions
from effssl.objectives.step import Step
from effssl.objectives.term import Outcome, RunInfo, Teacher, Term
from effssl.runtime.distribution import gather
from effssl.runtime.errors import RequestError

MEGABYTE = 2**20


def relational(p: Tensor, t: Tensor) -> Tensor:
    """Mean over views and pairs of images of (cos(pᵢ, pⱼ) − cos(tᵢ, tⱼ))². p: V×B×D, t: V×B×D or 1×B×D, unit rows."""
    difference = p @ p.mT - t @ t.mT  # V×B×B; 0 on the diagonal
    views, images, _ = difference.shape
    return difference.square().sum() / (views * images * max(1, images - 1))


class Distill(Term):
    """L = 1 − mean over online views v of cos(W h_v, t), or the relational loss of W h_v and t.

    t are the teacher's features minus their mean over the training images: of the image, computed once before
    training and held in memory, or of each view, computed with each batch.
    """

    reads = ("online",)

    def __init__(self, options: DistillOptions, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        self.teacher = open_teacher(options, info)
        assert info.sample is not None
        if options.targets == "image":
            self.features = image_features(self.teacher, options.memory)
        else:
            self.features = self.teacher(info.sample()).cpu()
        if not torch.isfinite(self.features).all():
            raise RequestError(
                f"distill.teacher {options.teacher} has features that are not finite; choose another one"
            )
        self.mean = self.features.mean(0)
        self.head = nn.Linear(network.h_dim, self.teacher.dim)

    def get_extra_state(self) -> str:
        return self.teacher.fingerprint

    def set_extra_state(self, state: str) -> None:
        if state != self.teacher.fingerprint:
            teacher = self.options.teacher
            raise RequestError(f"distill.teacher {teacher} has changed since the run was started; choose another --out")

    def targets(self, step: Step) -> Tensor:
        """The teacher's features as unit vectors, V×B×D of each view or 1×B×D of the image."""
        if self.options.targets == "image":
            t = self.features[step.views.index][None]
        else:
            views = [step.views.pixels[group] for group in step.online_groups]
            t = torch.cat([self.teacher(x.flatten(0, 1)).unflatten(0, x.shape[:2]) for x in views])
        t = t - self.mean.to(t)
        return F.normalize(t, dim=2).to(step.online("h"), non_blocking=True)

    def loss(self, step: Step) -> Outcome:
        p = F.normalize(step.run(self.head, step.online("h")), dim=2)  # V×B×D
        t = self.targets(step)
        if self.options.loss == "relational":
            return Outcome(relational(gather(p, dim=1), gather(t, dim=1)))
        cosine = p @ t.mT  # V×B×B
        loss = 1 - cosine.diagonal(dim1=1, dim2=2).mean()
        # An image is recognized if its own target is the nearest to the prediction, among those of the batch.
        own = torch.arange(cosine.shape[2], device=cosine.device)
        accuracy = (cosine.detach().argmax(2) == own).float().mean()
        return Outcome(loss, accuracy, chance=1 / len(own))


def open_teacher(options: DistillOptions, info: RunInfo) -> Teacher:
    """The teacher of the options, or one line that says why there is none."""
    if not options.teacher:
        what = "a run folder, a weight file or the name of a model"
        raise RequestError(f"distill needs a teacher; give --distill.teacher: {what}")
    if info.teacher is None:
        raise RequestError("distill compares with the teacher's features of the training images; give data")
    return info.teacher("distill", options)


def image_features(teacher: Teacher, memory: int) -> Tensor:
    """The teacher's features of all training images, if they fit into so many megabytes."""
    needed = -(-len(teacher.images) * teacher.dim * 4 // MEGABYTE)
    if needed > memory:
        held = f"{len(teacher.images)} images × {teacher.dim} features of the teacher take {needed} MB"
        raise RequestError(f"{held}; raise --distill.memory from {memory}, or use --distill.targets view")
    return teacher.features()
