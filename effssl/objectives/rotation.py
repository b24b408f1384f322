"""Rotation prediction (Gidaris et al. 2018): classify by how much a view was rotated.

A view group with `rotated: true` has its views rotated and their angles recorded. This term reads the features that
the network computes for them anyway: it adds a head and no pass.
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
    """L = mean over all rotated views of CE(r(z), angle); with `on: h`, r reads h. r is an MLP."""

    reads = ("rotated",)

    def __init__(self, options: RotationOptions, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        group = rotated_groups(info)[0]  # all have the same angles
        self.angles = group.angles
        self.chance = most_frequent_label(group, options.noise)
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
        """What the head reads of all rotated views, N×D."""
        return torch.cat([self.read(step, group).flatten(0, 1) for group in step.views.angles])

    def read(self, step: Step, group: str) -> Tensor:
        """z or h of a group of views, V×B×D; with `shared`, from late stages of this term's own."""
        if not self.options.shared:
            return step.z(group) if self.options.on == "z" else step.h(group)

        def branched(x: Tensor) -> Tensor:
            return self.branch(step.network.run(x, stop=self.options.shared))

        return step.passes(branched, step.views.pixels[group], group)

    def noisy(self, step: Step, labels: Tensor) -> Tensor:
        """The labels, each replaced with probability `noise` by another angle; drawn afresh for every view."""
        if not self.options.noise:
            return labels
        rng = step.views.generator("angle noise")
        views = len(labels) // len(step.views.index)
        shape = (views, step.views.total)
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


def most_frequent_label(group: ViewGroup, noise: float = 0.0) -> float:
    """The share of views with the most frequent label, which always predicting it would reach.

    >>> most_frequent_label(ViewGroup(angles=(0, 90, 180, 270)))
    0.25
    """
    count = len(group.angles)
    first = group.upright + (1 - group.upright) / count
    shares = (first, (1 - first) / max(1, count - 1))
    return max(share * (1 - noise) + (1 - share) * noise / max(1, count - 1) for share in shares)


def angle_labels(step: Step) -> Tensor:
    """Position in the angle set of every rotated view, on the CPU."""
    return torch.cat([labels.flatten() for labels in step.views.angles.values()])
