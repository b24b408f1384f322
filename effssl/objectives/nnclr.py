"""NNCLR: the positive of an image is its nearest neighbor among past embeddings. Dwibedi et al. 2021."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.network.heads import mlp
from effssl.network.network import Network
from effssl.objectives.options import NNCLROptions
from effssl.objectives.queue import enqueue
from effssl.objectives.step import Step
from effssl.objectives.term import Outcome, RunInfo, Term
from effssl.runtime.distribution import gather, local_rows


def nearest(z: Tensor, queue: Tensor) -> Tensor:
    """The row of the queue L×D that has the largest cosine with each z, …×D; all have unit length.

    >>> nearest(torch.tensor([[0.6, 0.8]]), torch.eye(2))
    tensor([[0., 1.]])
    """
    return queue[(z @ queue.T).argmax(-1)]


class NNCLR(Term):
    """L = mean over pairs of views of CE(n_t · q(z_v)ᵀ / τ), n_t the nearest neighbor of z_t in the queue.

    The neighbor of an image's target view has to find the image's own prediction among those of the batch. The queue
    takes the projections of the first target view.
    """

    recent: Tensor  # B×D: projections of the current batch
    queue: Tensor  # length×D
    position: Tensor  # where the next projection is written

    def __init__(self, options: NNCLROptions, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        self.q = mlp([network.z_dim, options.predictor_hidden, network.z_dim])
        self.register_buffer("queue", F.normalize(torch.randn(options.queue, network.z_dim), dim=1))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    def loss(self, step: Step) -> Outcome:
        p = gather(F.normalize(step.predict(self.q, step.online()), dim=2), dim=1)  # V×B×D, of all processes
        z = F.normalize(step.targets().detach(), dim=2)  # T×b×D, of this process
        neighbors = nearest(z, self.queue)  # T×b×D
        own = torch.arange(p.shape[1], device=p.device)[local_rows(p.shape[1])]  # b
        losses = [F.cross_entropy(neighbors[t] @ p[v].T / self.options.temperature, own) for v, t in step.pairs]
        first = gather(z[0])
        self.recent = first if step.views.micro == 0 else torch.cat([self.recent, first])
        return Outcome(torch.stack(losses).mean())

    def after_update(self, network: Network, progress: float) -> None:
        enqueue(self.queue, self.position, self.recent)
