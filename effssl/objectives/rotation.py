"""Rotation prediction (Gidaris et al. 2018): a pretext task without label noise, beside a base method.

Which views are rotated, how large they are and whether a base method learns from them too is declared in
`--views.rotated`; here their angle is predicted from the features that the network has for them.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effssl.augment.options import ViewGroup
from effssl.network.heads import mlp
from effssl.network.network import Network
from effssl.objectives.options import RotationOptions
from effssl.objectives.step import Step
from effssl.objectives.term import Outcome, RunInfo, TaskExamples, Term
from effssl.runtime.errors import RequestError

NORMS = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


class Rotation(Term):
    """L = mean over all rotated views of CE(r(z), angle), or of CE(r(h), angle); r is an MLP.

    Rotated views have a pass of their own, so their batch statistics do not mix with those of other views.
    """

    reads = ("rotated",)

    def __init__(self, options: RotationOptions, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        group = rotated_groups(info)[0]
        self.angles = group.angles
        self.chance = group.upright + (1 - group.upright) / len(
            group.angles
        )  # of always predicting the most frequent angle
        width = network.z_dim if options.on == "z" else network.h_dim
        hidden = [options.hidden or network.hidden] * (options.layers - 1)
        self.r = mlp([width, *hidden, len(group.angles)], norm_type=NORMS[options.norm])
        if options.shared:
            stages = network.stages() if options.on == "z" else network.stages()[:-1]
            if options.shared > len(stages):
                raise RequestError(f"rotation.shared is {options.shared}; this network has {len(stages)} stages")
            self.branch = nn.Sequential(*copy.deepcopy(stages[options.shared :]))

    def loss(self, step: Step) -> Outcome:
        logits = step.run(self.r, self.features(step))  # N×angles
        labels = self.noisy(step, angle_labels(step)).to(logits.device, non_blocking=True)  # N
        accuracy = (logits.detach().argmax(1) == labels).float().mean()
        return Outcome(F.cross_entropy(logits, labels), accuracy, self.chance)

    def features(self, step: Step) -> Tensor:
        """What the head reads of every rotated view, N×D: z or h, or the output of the branch that is not shared."""
        if self.options.shared:

            def branched(x: Tensor) -> Tensor:
                return self.branch(step.network.run(x, stop=self.options.shared))

            parts = [step.passes(branched, step.views.pixels[group], group) for group in step.views.angles]
        else:
            parts = [step.z(group) if self.options.on == "z" else step.h(group) for group in step.views.angles]
        return torch.cat([part.flatten(0, 1) for part in parts])

    def noisy(self, step: Step, labels: Tensor) -> Tensor:
        """The labels, each replaced with probability `noise` by another angle; drawn afresh for every view."""
        if not self.options.noise:
            return labels
        rng = step.views.generator("angle noise")
        shape = (len(labels) // len(step.views.index), step.views.total)
        wrong = torch.rand(shape, generator=rng) < self.options.noise
        shift = torch.randint(1, len(self.angles), shape, generator=rng) * wrong
        return (labels + shift[:, step.views.rows].reshape(-1)) % len(self.angles)

    def examples(self, step: Step) -> TaskExamples:
        pixels = torch.cat([step.views.pixels[group].flatten(0, 1) for group in step.views.angles])
        logits = step.run(self.r, self.features(step))
        return TaskExamples(pixels, angle_labels(step), logits, [f"{angle:g}°" for angle in self.angles])


def rotated_groups(info: RunInfo) -> list[ViewGroup]:
    """The view groups that are rotated; there is at least one, and all have the same angle set."""
    groups = [group for group in info.groups.values() if group.rotated]
    if not groups:
        raise RequestError("the rotation task needs rotated views: --views.rotated.count 2")
    if any((group.angles, group.upright) != (groups[0].angles, groups[0].upright) for group in groups):
        raise RequestError("all rotated view groups need the same angles and share of upright views")
    return groups


def angle_labels(step: Step) -> Tensor:
    """Position in the angle set of every rotated view, on the CPU."""
    return torch.cat([labels.flatten() for labels in step.views.angles.values()])
