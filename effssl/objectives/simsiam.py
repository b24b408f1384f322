"""SimSiam: predict the projection of the other view, without letting the gradient reach it. Chen & He 2021."""

from __future__ import annotations

from torch import nn

from effssl.network import Network
from effssl.network.heads import mlp
from effssl.objectives.byol import agreement
from effssl.objectives.objective import Outcome, Setting, Step, Term, swapped
from effssl.objectives.options import SimSiam as Options


class SimSiam(Term):
    """L = −½ cos(q(z₁), sg z₂) − ½ cos(q(z₂), sg z₁); further views and one side as for BYOL."""

    def __init__(self, options: Options, network: Network, setting: Setting) -> None:
        super().__init__(options, network, setting)
        self.q = mlp([network.z_dim, options.predictor_hidden, network.z_dim])

    def loss(self, step: Step) -> Outcome:
        answers = step.answers(step.network.project) if step.one_sided else swapped(step.z())
        return Outcome(-agreement(step, self.q, answers.detach() if self.options.stop_gradient else answers))

    def fixed_lr(self) -> list[nn.Parameter]:
        return list(self.q.parameters()) if self.options.fix_predictor_lr else []
