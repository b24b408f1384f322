"""MoCo: find the momentum network's key of the other view among a queue of keys of other images. He et al. 2020."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.network import Network, follow, momentum_copy
from effssl.objectives.objective import Outcome, Setting, Step, Term
from effssl.objectives.options import MoCo as Options
from effssl.runtime.distribution import gather, share, world
from effssl.runtime.errors import RequestError


def info_nce(q: Tensor, k: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """−mean log softmax of the positive among itself and the queue; all inputs have unit rows."""
    positive = (q * k).sum(1, keepdim=True)  # B×1
    logits = torch.cat([positive, q @ queue.T], 1) / temperature  # B×(1+K)
    return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))


class MoCo(Term):
    """Symmetric by default: each view is the query once; the loss is the sum of both directions.

    In one process batch norm would tell which key belongs to a query, because both see the same batch. Keys therefore
    run shuffled in `key_bn_groups` groups with statistics of their own.
    """

    recent: Tensor  # keys of the batch at hand
    queue: Tensor  # length×D
    position: Tensor  # where the next key goes

    def __init__(self, options: Options, network: Network, setting: Setting) -> None:
        super().__init__(options, network, setting)
        if setting.batch_size % options.key_bn_groups:
            raise RequestError(
                f"moco.key_bn_groups {options.key_bn_groups} does not divide the batch of {setting.batch_size} images"
            )
        if options.key_bn_groups % world():
            raise RequestError(f"moco.key_bn_groups {options.key_bn_groups} cannot be dealt out to {world()} processes")
        self.target = momentum_copy(network)
        self.target.own_statistics = True  # type: ignore[assignment]  # also where batch norm covers all processes
        self.register_buffer("queue", F.normalize(torch.randn(options.queue, network.z_dim), dim=1))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    def keys(self, step: Step, x: Tensor, purpose: str) -> Tensor:
        """Unit keys of one view of all processes' images, B×D, made in groups of shuffled images."""
        x = gather(x)
        order = torch.randperm(len(x), generator=step.views.generator(f"{purpose}/{step.views.part}"))
        order = order.to(x.device, non_blocking=True)
        groups = x[order].chunk(self.options.key_bn_groups)[share(self.options.key_bn_groups)]
        k = torch.cat([step.run(lambda part: self.target.g(self.target.f(part)), group) for group in groups])
        return F.normalize(gather(k)[order.argsort()], dim=1)

    def loss(self, step: Step) -> Outcome:
        q = F.normalize(step.z(), dim=1).chunk(2)
        x1, x2 = step.views.large
        with torch.no_grad():
            k2 = self.keys(step, x2, "shuffle 2")
            k1 = self.keys(step, x1, "shuffle 1") if self.options.symmetric else k2[:0]
        mine = share(len(k2))
        loss = info_nce(q[0], k2[mine], self.queue, self.options.temperature)
        if self.options.symmetric:
            loss = loss + info_nce(q[1], k1[mine], self.queue, self.options.temperature)
        keys = torch.cat([k1, k2])
        self.recent = keys if step.views.part == 0 else torch.cat([self.recent, keys])
        return Outcome(loss)

    @torch.no_grad()
    def after_update(self, network: Network, progress: float) -> None:
        follow(self.target, network, self.options.momentum)
        length = len(self.queue)
        keys = self.recent[-length:]
        rows = (self.position + torch.arange(len(keys), device=keys.device)) % length
        self.queue.index_copy_(0, rows, keys)
        self.position.copy_((self.position + len(keys)) % length)
