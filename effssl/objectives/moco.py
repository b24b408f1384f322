"""MoCo: find the momentum network's key of another view among a queue of keys of other images. He et al. 2020."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.network.momentum import ema_update, momentum_copy
from effssl.network.network import Network
from effssl.objectives.options import MoCoOptions
from effssl.objectives.queue import enqueue
from effssl.objectives.step import Step
from effssl.objectives.term import Outcome, RunInfo, Term
from effssl.runtime.distribution import gather, local_rows, world_size
from effssl.runtime.errors import RequestError


def info_nce(q: Tensor, k: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """−mean log softmax of the positive among itself and the queue; all inputs have unit rows."""
    positive = (q * k).sum(1, keepdim=True)  # B×1
    logits = torch.cat([positive, q @ queue.T], 1) / temperature  # B×(1+K)
    return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))


class MoCo(Term):
    """L = Σ over targets t of the mean over online views v of InfoNCE(z_v, k_t).

    With two views that are both online and targets this is the symmetric loss, the sum of both directions; with one
    online view and one target the asymmetric one. In one process batch norm would reveal which key belongs to a query,
    because both see the same batch. Keys therefore run shuffled in `key_bn_groups` groups with statistics of their own.
    """

    recent: Tensor  # keys of the current batch
    queue: Tensor  # length×D
    position: Tensor  # where the next key is written

    def __init__(self, options: MoCoOptions, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        if info.batch_size % options.key_bn_groups:
            raise RequestError(
                f"moco.key_bn_groups {options.key_bn_groups} does not divide the batch of {info.batch_size} images"
            )
        if options.key_bn_groups % world_size():
            raise RequestError(
                f"moco.key_bn_groups is {options.key_bn_groups}; it must be a multiple of the {world_size()} processes"
            )
        self.target_network = momentum_copy(network)
        self.target_network.own_statistics = True  # type: ignore[assignment]  # also where batch norm covers all processes
        self.register_buffer("queue", F.normalize(torch.randn(options.queue, network.z_dim), dim=1))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def keys(self, step: Step, x: Tensor, view: int) -> Tensor:
        """Unit keys of one view of all processes' images, B×D, computed in groups of shuffled images."""
        x = gather(x)
        order = torch.randperm(len(x), generator=step.views.generator(f"shuffle {view}/{step.views.micro}"))
        order = order.to(x.device, non_blocking=True)
        groups = x[order].chunk(self.options.key_bn_groups)[local_rows(self.options.key_bn_groups)]
        k = torch.cat([step.run(self.target_network.project, group) for group in groups])
        return F.normalize(gather(k)[order.argsort()], dim=1)

    def loss(self, step: Step) -> Outcome:
        q = F.normalize(step.online(), dim=2)  # V×B×D
        k = torch.stack([self.keys(step, x, t) for t, x in enumerate(step.target_views())])  # T×B×D, of all processes
        mine = k[:, local_rows(k.shape[1])]
        losses = [info_nce(q[v], mine[t], self.queue, self.options.temperature) for v, t in step.pairs]
        keys = k.flatten(0, 1)
        self.recent = keys if step.views.micro == 0 else torch.cat([self.recent, keys])
        return Outcome(torch.stack(losses).mean() * len(k))

    def after_update(self, network: Network, progress: float) -> None:
        ema_update(self.target_network, network, self.options.momentum)
        enqueue(self.queue, self.position, self.recent)
