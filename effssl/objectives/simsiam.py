"""SimSiam: predict the projection of another view, through which no gradient flows. Chen & He 2021."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from effssl.network.heads import mlp
from effssl.network.network import Network
from effssl.objectives.options import SimSiamOptions
from effssl.objectives.step import Step
from effssl.objectives.term import Outcome, RunInfo, Term


class SimSiam(Term):
    """L = −mean over pairs of views of cos(q(z_v), sg z_t).

    With two views that are both online and targets this is −½ cos(q(z₁), sg z₂) − ½ cos(q(z₂), sg z₁).
    """

    def __init__(self, options: SimSiamOptions, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        self.q = mlp([network.z_dim, options.predictor_hidden, network.z_dim])

    def loss(self, step: Step) -> Outcome:
        p = step.predict(self.q, step.online())  # V×B×D
        z = step.targets()  # T×B×D
        if self.options.stop_gradient:
            z = z.detach()
        losses = [-F.cosine_similarity(p[v], z[t], dim=1).mean() for v, t in step.pairs]
        return Outcome(torch.stack(losses).mean())

    def fixed_lr(self) -> list[nn.Parameter]:
        return list(self.q.parameters()) if self.options.fix_predictor_lr else []
