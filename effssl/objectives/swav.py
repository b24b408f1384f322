"""SwAV: predict from one view the cluster that another view of the image was assigned to. Caron et al. 2020."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effssl.network.network import Network
from effssl.objectives.options import SwAVOptions
from effssl.objectives.step import Step
from effssl.objectives.term import Outcome, RunInfo, Term
from effssl.runtime.distribution import gather, local_rows


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
    """L = mean over pairs of views of CE(q_t, p_v): q_t the assignment of a target, p_v the prediction from a view.

    With two large views as targets and V online views this is ½ Σᵢ 1/(V − 1) Σ_{v ≠ i} CE(qᵢ, p_v).
    """

    recent: Tensor  # T×B×D: projections of the current batch
    queue: Tensor  # T×length×D: past projections of each target view, newest first

    def __init__(self, options: SwAVOptions, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        self.prototypes = nn.Linear(network.z_dim, options.prototypes, bias=False)
        self._normalize()
        targets = sum(group.views for group in info.groups.values() if group.target)
        self.register_buffer("queue", torch.zeros(targets, options.queue, network.z_dim))
        self.filled = 0  # projections that were ever put into it
        self.queue_start = round(options.queue_from * info.steps_per_epoch)
        self.freeze_steps = round(options.freeze_epochs * info.steps_per_epoch)

    def get_extra_state(self) -> int:
        return self.filled

    def set_extra_state(self, state: int) -> None:
        self.filled = state

    @torch.no_grad()
    def _normalize(self) -> None:
        self.prototypes.weight.copy_(F.normalize(self.prototypes.weight, dim=1))

    def loss(self, step: Step) -> Outcome:
        z = F.normalize(step.online(), dim=2)  # V×B×D
        log_p = (self.prototypes(z) / self.options.temperature).log_softmax(2)  # V×B×K
        q = self.assignments(step, step.targets())  # T×B×K
        losses = [-(q[t] * log_p[v]).sum(1).mean() for v, t in step.pairs]
        return Outcome(torch.stack(losses).mean())

    @torch.no_grad()
    def assignments(self, step: Step, targets: Tensor) -> Tensor:
        """Soft clusters of the target views, T×B×K, balanced over the batch of all processes and the queue."""
        y = gather(F.normalize(targets, dim=2), dim=1)  # T×B×D
        self.recent = y if step.views.micro == 0 else torch.cat([self.recent, y], 1)
        use_queue = 0 < self.options.queue <= self.filled and step.views.step >= self.queue_start
        samples = torch.cat([y, self.queue], 1) if use_queue else y
        mine = local_rows(y.shape[1])
        options = self.options
        return torch.stack([sinkhorn(self.prototypes(s), options.epsilon, options.iterations)[mine] for s in samples])

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
