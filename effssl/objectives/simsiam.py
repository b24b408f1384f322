"""SimSiam: predict the projection of the other view, without letting the gradient reach it. Chen & He 2021."""

from __future__ import annotations

import torch
from torch import nn

from effssl.network import Network
from effssl.network.heads import mlp
from effssl.objectives.byol import mean_cosine
from effssl.objectives.objective import Outcome, Setting, Step, Term
from effssl.objectives.options import SimSiam as Options


class SimSiam(Term):
    """L = −½ cos(q(z₁), sg z₂) − ½ cos(q(z₂), sg z₁)."""

    def __init__(self, options: Options, network: Network, setting: Setting) -> None:
        super().__init__(options, network, setting)
        self.q = mlp([network.z_dim, options.predictor_hidden, network.z_dim])

    def loss(self, step: Step) -> Outcome:
        z = step.z()  # 2B×D
        halves = [z] if step.joint_pass else z.chunk(2)
        p = torch.cat([step.run(self.q, half) for half in halves])
        other = z.roll(len(z) // 2, 0)
        return Outcome(-mean_cosine(p, other.detach() if self.options.stop_gradient else other))

    def fixed_lr(self) -> list[nn.Parameter]:
        return list(self.q.parameters()) if self.options.fix_predictor_lr else []
