"""SimCLR: find another view of an image among all views of the batch. Chen et al. 2020."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.network.network import Network
from effssl.objectives.labels import known_labels, required_labels
from effssl.objectives.options import SimCLROptions
from effssl.objectives.step import Step
from effssl.objectives.term import Outcome, RunInfo, Term
from effssl.runtime.distribution import gather

Pairs = list[tuple[int, int]]


def nt_xent(
    z: Tensor, y: Tensor, pairs: Pairs, temperature: float, drop: Tensor | None = None, decoupled: bool = False
) -> Tensor:
    """−mean over pairs (v, t) and images of log softmax of cos(z_v, y_t)/τ among itself and the views of other images.

    z: V×B×D, the anchors; y: C×B×D, all views they are compared with. `drop`, B×B: pairs of images (anchor, other)
    that are left out of the denominator. `decoupled` leaves the positive out of it too. Two views of two images:

    >>> z = torch.tensor([[[1., 0.], [0., 1.]], [[1., 0.], [0., 1.]]])
    >>> nt_xent(z, z, [(0, 1), (1, 0)], 1.0)  # log(e + 1 + 1) − 1
    tensor(0.5514)
    """
    (views, images, dim), candidates = z.shape, len(y)
    z, y = F.normalize(z, dim=2).view(-1, dim), F.normalize(y, dim=2).view(-1, dim)
    similarity = (z @ y.T / temperature).view(views, images, candidates, images)
    same_image = similarity.diagonal(dim1=1, dim2=3)  # V×C×B
    positive = torch.stack([same_image[v, t] for v, t in pairs])  # P×B
    itself = torch.eye(images, dtype=torch.bool, device=z.device)
    excluded = itself if drop is None else itself | drop
    others = similarity.masked_fill(excluded[:, None], -torch.inf).flatten(2).logsumexp(2)  # V×B
    negatives = torch.stack([others[v] for v, _ in pairs])  # P×B
    denominator = negatives if decoupled else torch.logaddexp(positive, negatives)
    return (denominator - positive).mean()


def same_class(labels: Tensor, known: Tensor, mode: str) -> Tensor:
    """False negatives, B×B: images of the anchor's class, as far as labels are known; never the anchor itself.

    `both`: the labels of both images must be known. `anchor`: that of the anchor is enough.
    """
    known_pairs = known[:, None] & known[None, :] if mode == "both" else known[:, None].expand(-1, len(known))
    drop = (labels[:, None] == labels[None, :]) & known_pairs
    return drop.fill_diagonal_(False)


class SimCLR(Term):
    """NT-Xent on z; with `known_labels` false negatives that a fraction of the labels reveals are left out."""

    def __init__(self, options: SimCLROptions, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        base = options.base_temperature
        self.factor = options.temperature / base if base else 1.0
        if options.known_labels > 0:
            self.labels = required_labels(info, "simclr with known_labels")
            self.known = known_labels(self.labels, options.known_labels, info.seed)

    def loss(self, step: Step) -> Outcome:
        z = gather(step.online(), dim=1)  # V×B×D, of all processes
        online_only = [z[v : v + 1] for v in step.online_only]
        y = torch.cat([gather(step.targets(), dim=1), *online_only])  # all views, the targets first
        options = self.options
        loss = nt_xent(z, y, step.pairs, options.temperature, self._false_negatives(step), options.decoupled)
        return Outcome(self.factor * loss)

    def _false_negatives(self, step: Step) -> Tensor | None:
        if self.options.known_labels == 0:
            return None
        index = gather(step.views.index)
        drop = same_class(self.labels[index], self.known[index], self.options.false_negatives)
        return drop.to(step.online().device, non_blocking=True)
