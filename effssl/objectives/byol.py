"""BYOL: predict what a slowly following copy of the network says about the other view. Grill et al. 2020."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effssl.network import Network, follow, momentum_copy
from effssl.network.heads import mlp
from effssl.objectives.objective import Outcome, Setting, Step, Term
from effssl.objectives.options import BYOL as Options


def mean_cosine(p: Tensor, z: Tensor) -> Tensor:
    """Mean cosine between rows."""
    return F.cosine_similarity(p, z, dim=1).mean()


def agreement(step: Step, q: nn.Module, answers: Tensor) -> Tensor:
    """Mean cosine of q(z) and the answers, plus that of further views with the mean of an image's answers."""
    z = step.z()  # 2B×D, or B×D of one side
    parts = [z] if step.joint_pass else z.split(len(step.views.index))
    total = mean_cosine(torch.cat([step.run(q, part) for part in parts]), answers)
    if step.more is None:
        return total
    count = len(step.views.index)
    mean = F.normalize(answers.detach(), dim=1).view(-1, count, answers.shape[1]).mean(0)  # B×D
    return total + mean_cosine(step.run(q, step.more), mean.repeat(len(step.more) // count, 1))


class BYOL(Term):
    """L = −(1/2B) Σ cos(q(z₁), z̄₂) + cos(q(z₂), z̄₁), z̄ from the target network ψ ← τψ + (1 − τ)θ.

    With further views z′ of an image (`step.more`) also −mean cos(q(z′), mean of its z̄); one-sided, z̄₂ alone answers.
    """

    def __init__(self, options: Options, network: Network, setting: Setting) -> None:
        super().__init__(options, network, setting)
        self.q = mlp([network.z_dim, options.predictor_hidden, network.z_dim])
        self.target = momentum_copy(network)

    def loss(self, step: Step) -> Outcome:
        answers = step.answers(self.target.project)
        return Outcome(-self.options.loss_scale * agreement(step, self.q, answers))

    def after_update(self, network: Network, progress: float) -> None:
        tau, end = self.options.momentum, self.options.momentum_end
        if end:
            tau = end - (end - tau) * (1 + math.cos(math.pi * progress)) / 2
        follow(self.target, network, tau)
