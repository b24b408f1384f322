"""BYOL: predict the projection that a momentum copy of the network gives for another view. Grill et al. 2020."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from effssl.network.heads import mlp
from effssl.network.momentum import ema_update, momentum_copy
from effssl.network.network import Network
from effssl.objectives.options import BYOLOptions
from effssl.objectives.step import Step
from effssl.objectives.term import Outcome, RunInfo, Term
from effssl.schedules import cosine


class BYOL(Term):
    """L = −mean over pairs of views of cos(q(z_v), z̄_t), z̄ from the target network ψ ← τψ + (1 − τ)θ.

    With two views that are both online and targets this is −(1/2B) Σ [cos(q(z₁), z̄₂) + cos(q(z₂), z̄₁)].
    """

    def __init__(self, options: BYOLOptions, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        self.q = mlp([network.z_dim, options.predictor_hidden, network.z_dim])
        self.target_network = momentum_copy(network)

    def loss(self, step: Step) -> Outcome:
        p = step.predict(self.q, step.online())  # V×B×D
        z = step.targets(self.target_network.project)  # T×B×D, no gradient
        losses = [-F.cosine_similarity(p[v], z[t], dim=1).mean() for v, t in step.pairs]
        return Outcome(self.options.loss_scale * torch.stack(losses).mean())

    def after_update(self, network: Network, progress: float) -> None:
        tau, end = self.options.momentum, self.options.momentum_end
        ema_update(self.target_network, network, cosine(progress, tau, end) if end else tau)
