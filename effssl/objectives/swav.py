"""SwAV: predict from one view the cluster that another view of the image was assigned to. Caron et al. 2020."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effssl.data.views import Needs
from effssl.network import Network
from effssl.objectives.objective import Outcome, Setting, Step, Term
from effssl.objectives.options import SwAV as Options
from effssl.runtime.distribution import gather, share


def sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Soft assignments of B samples to K prototypes, B×K, that use all prototypes alike; each row sums to one.

    Run in the log domain in float32, where no ε makes it overflow and no prototype can lose all its mass.
    """
    samples, prototypes = scores.shape
    log_q = scores.float() / epsilon
    for _ in range(iterations):
        log_q = log_q - log_q.logsumexp(0, keepdim=True) - math.log(prototypes)  # each prototype: 1/K
        log_q = log_q - log_q.logsumexp(1, keepdim=True) - math.log(samples)  # each sample: 1/B
    return log_q.softmax(1)


class SwAV(Term):
    """L = ½ Σᵢ 1/(V − 1) Σ_{v ≠ i} CE(qᵢ, p_v), i over the two large views, v over all V views."""

    recent: Tensor  # 2×B×D: projections of the batch at hand
    queue: Tensor  # 2×length×D: past projections of the first and of the second view, newest first

    def __init__(self, options: Options, network: Network, setting: Setting) -> None:
        super().__init__(options, network, setting)
        self.needs = Needs(small=True)
        self.prototypes = nn.Linear(network.z_dim, options.prototypes, bias=False)
        self._normalize()
        self.register_buffer("queue", torch.zeros(2, options.queue, network.z_dim))
        self.filled = 0  # projections that were ever put into it
        self.queue_start = round(options.queue_from * setting.steps_per_epoch)
        self.freeze_steps = round(options.freeze_epochs * setting.steps_per_epoch)

    def get_extra_state(self) -> int:
        return self.filled

    def set_extra_state(self, state: int) -> None:
        self.filled = state

    @torch.no_grad()
    def _normalize(self) -> None:
        self.prototypes.weight.copy_(F.normalize(self.prototypes.weight, dim=1))

    def loss(self, step: Step) -> Outcome:
        z = F.normalize(step.z(), dim=1)  # 2B×D
        if step.views.small:
            z = torch.cat([z, F.normalize(step.z("small"), dim=1)])
        if step.more is not None:
            z = torch.cat([z, F.normalize(step.more, dim=1)])
        views = z.view(-1, len(step.views.index), z.shape[1])  # V×B×D
        scores = self.prototypes(views)  # V×B×K
        log_p = (scores / self.options.temperature).log_softmax(2)
        everyone = gather(views[:2].detach().flatten(0, 1), 2).view(2, -1, z.shape[1])  # 2×B×D, of all processes
        self.recent = everyone if step.views.part == 0 else torch.cat([self.recent, everyone], 1)
        mine = share(everyone.shape[1])
        use_queue = 0 < self.options.queue <= self.filled and step.views.step >= self.queue_start
        total = torch.zeros((), device=z.device)
        for i in (0, 1):
            with torch.no_grad():
                assign = gather(scores[i])
                if use_queue:
                    assign = torch.cat([assign, self.prototypes(self.queue[i])])
                q = sinkhorn(assign, self.options.epsilon, self.options.iterations)[mine]
            others = [v for v in range(len(views)) if v != i]
            total = total - torch.stack([(q * log_p[v]).sum(1).mean() for v in others]).mean()
        return Outcome(total / 2)

    def before_update(self, updates: int) -> None:
        if updates < self.freeze_steps:
            self.prototypes.weight.grad = None

    @torch.no_grad()
    def after_update(self, network: Network, progress: float) -> None:
        self._normalize()
        if self.options.queue:
            # Newest first; of a batch larger than the queue its first samples stay.
            self.queue.copy_(torch.cat([self.recent, self.queue], 1)[:, : self.options.queue])
            self.filled += self.recent.shape[1]
