"""BYOL: predict what a slowly following copy of the network says about the other view. Grill et al. 2020."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.network import Network, follow, momentum_copy
from effssl.network.heads import mlp
from effssl.objectives.objective import Outcome, Setting, Step, Term
from effssl.objectives.options import BYOL as Options


def mean_cosine(p: Tensor, z: Tensor) -> Tensor:
    """Mean cosine between rows."""
    return F.cosine_similarity(p, z, dim=1).mean()


class BYOL(Term):
    """L = −(1/2B) Σ cos(q(z₁), z̄₂) + cos(q(z₂), z̄₁), z̄ from the target network ψ ← τψ + (1 − τ)θ."""

    def __init__(self, options: Options, network: Network, setting: Setting) -> None:
        super().__init__(options, network, setting)
        self.q = mlp([network.z_dim, options.predictor_hidden, network.z_dim])
        self.target = momentum_copy(network)

    def loss(self, step: Step) -> Outcome:
        z = step.z()  # 2B×D
        halves = [z] if step.joint_pass else z.chunk(2)
        p = torch.cat([step.run(self.q, half) for half in halves])
        with torch.no_grad():
            target = step.passes(lambda x: self.target.g(self.target.f(x)))
        other = target.roll(len(target) // 2, 0)  # the target of the other view
        return Outcome(-self.options.loss_scale * mean_cosine(p, other))

    def after_update(self, network: Network, progress: float) -> None:
        tau, end = self.options.momentum, self.options.momentum_end
        if end:
            tau = end - (end - tau) * (1 + math.cos(math.pi * progress)) / 2
        follow(self.target, network, tau)
