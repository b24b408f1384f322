"""DINO: predict the sharp, centered distribution over prototypes that a momentum teacher has. Caron et al. 2021."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effssl.network.momentum import ema_update, momentum_copy
from effssl.network.network import Network
from effssl.objectives.options import DINOOptions
from effssl.objectives.step import Step
from effssl.objectives.term import Outcome, RunInfo, Term
from effssl.runtime.distribution import gather
from effssl.schedules import cosine


class Prototypes(nn.Linear):
    """Cosines of z with K learned directions: …×D → …×K."""

    def __init__(self, dim: int, count: int) -> None:
        super().__init__(dim, count, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        return F.linear(F.normalize(z, dim=-1), F.normalize(self.weight, dim=1))


class DINO(Term):
    """L = mean over pairs of views of CE(softmax((s_t − c)/τ_t), softmax(s_v/τ_s)), s the scores of K prototypes.

    s_t is of the teacher ψ ← mψ + (1 − m)θ. Its center c, a running mean of its scores, keeps one prototype from taking
    all images; its low temperature τ_t keeps all prototypes from taking each image alike.
    """

    recent: Tensor  # K: mean score of the teacher in the current batch, summed over micro-batches
    center: Tensor  # K

    def __init__(self, options: DINOOptions, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        self.prototypes = Prototypes(network.z_dim, options.prototypes)
        self.target_network = momentum_copy(network)
        self.target_prototypes = momentum_copy(self.prototypes)
        self.register_buffer("center", torch.zeros(options.prototypes))
        self.parts = 1  # micro-batches of the current batch
        self.freeze_steps = round(options.freeze_epochs * info.steps_per_epoch)

    def loss(self, step: Step) -> Outcome:
        log_p = (self.prototypes(step.online()) / self.options.temperature).log_softmax(2)  # V×B×K
        q = self.teacher(step)  # T×B×K
        losses = [-(q[t] * log_p[v]).sum(1).mean() for v, t in step.pairs]
        return Outcome(torch.stack(losses).mean())

    @torch.no_grad()
    def teacher(self, step: Step) -> Tensor:
        """The teacher's distributions for the target views, T×B×K; its mean score is kept for the center."""
        scores = self.target_prototypes(step.targets(self.target_network.project))  # T×B×K
        mean = gather(scores.mean((0, 1))[None]).mean(0)  # K, of all processes
        self.recent = mean if step.views.micro == 0 else self.recent + mean
        self.parts = step.views.micro + 1
        return ((scores - self.center) / self.options.teacher_temperature).softmax(2)

    def before_update(self, updates: int) -> None:
        if updates < self.freeze_steps:
            self.prototypes.weight.grad = None

    @torch.no_grad()
    def after_update(self, network: Network, progress: float) -> None:
        options = self.options
        momentum = cosine(progress, options.momentum, options.momentum_end or options.momentum)
        ema_update(self.target_network, network, momentum)
        ema_update(self.target_prototypes, self.prototypes, momentum)
        self.center.lerp_(self.recent / self.parts, 1 - options.center_momentum)
