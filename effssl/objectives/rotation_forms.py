"""Two other forms of the rotation loss that the paper compares with cross-entropy (its Table S4)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.augment.rotate import rotate_quarters
from effssl.network.network import Network
from effssl.objectives.options import RotationCosineOptions, RotationSupConOptions
from effssl.objectives.rotation import rotated_groups
from effssl.objectives.step import Step
from effssl.objectives.supcon import sup_con
from effssl.objectives.term import Outcome, RunInfo, Term
from effssl.runtime.distribution import gather
from effssl.runtime.errors import RequestError


class RotationSupCon(Term):
    """Supervised contrast of all rotated views' z, where the label is the angle."""

    reads = ("rotated",)

    def __init__(self, options: RotationSupConOptions, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        rotated_groups(info)

    def loss(self, step: Step) -> Outcome:
        z = torch.cat([gather(step.z(group), dim=1).flatten(0, 1) for group in step.views.angles])
        labels = torch.cat([gather(labels, dim=1).flatten() for labels in step.views.angles.values()])
        return Outcome(sup_con(z, labels.to(z.device, non_blocking=True), self.options.temperature))


class RotationCosine(Term):
    """Mean cosine between z of a rotated view and z of the same view at another angle of the set: to be minimized."""

    reads = ("rotated",)

    def __init__(self, options: RotationCosineOptions, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        self.angles = torch.tensor(rotated_groups(info)[0].angles)
        if bool((self.angles % 90 != 0).any()):
            raise RequestError(f"rotation_cosine rotates views further by quarter turns; angles are {self.angles}")

    def loss(self, step: Step) -> Outcome:
        means = [self._cosine(step, group, labels) for group, labels in step.views.angles.items()]
        return Outcome(torch.stack(means).mean())

    def _cosine(self, step: Step, group: str, labels: Tensor) -> Tensor:
        views = step.views
        g = views.generator(f"{group} second angles")
        shift = torch.randint(1, len(self.angles), (len(labels), views.total), generator=g)[:, views.rows]
        other = (labels + shift) % len(self.angles)
        turns = ((self.angles[other] - self.angles[labels]) / 90).round().long()  # V×B, on the CPU
        x = views.pixels[group]
        turned = rotate_quarters(x.flatten(0, 1), turns.flatten()).unflatten(0, x.shape[:2])
        return F.cosine_similarity(step.z(group), step.passes(step.network.project, turned, group), dim=2).mean()
