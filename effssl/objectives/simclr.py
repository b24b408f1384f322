"""SimCLR: tell the other view of an image from all other images of the batch. Chen et al. 2020."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.network import Network
from effssl.objectives.labels import known_labels, required_labels
from effssl.objectives.objective import Outcome, Setting, Step, Term
from effssl.objectives.options import SimCLR as Options
from effssl.runtime.distribution import gather


def nt_xent(z: Tensor, temperature: float, drop: Tensor | None = None, decoupled: bool = False) -> Tensor:
    """−mean over 2B anchors of log softmax over the 2B − 1 other views, at the anchor's partner.

    z: (2·B)×D, first all first views, then all second ones. `drop`, B×B: pairs of images (anchor, other) that are left
    out of the denominator. `decoupled` leaves the positive out of it too. Two identical pairs at right angles:

    >>> nt_xent(torch.tensor([[1., 0.], [0., 1.], [1., 0.], [0., 1.]]), 1.0)  # log(e + 1 + 1) − 1
    tensor(0.5514)
    """
    z = F.normalize(z, dim=1)
    similarity = z @ z.T / temperature  # 2B×2B
    similarity.fill_diagonal_(-torch.inf)
    partner = torch.arange(len(z), device=z.device).roll(len(z) // 2)
    if drop is not None:
        similarity = similarity.masked_fill(drop.repeat(2, 2), -torch.inf)
    if decoupled:
        positive = similarity.gather(1, partner[:, None]).squeeze(1)
        others = similarity.scatter(1, partner[:, None], -torch.inf)
        return (others.logsumexp(1) - positive).mean()
    return F.cross_entropy(similarity, partner)


def among_views(z: Tensor, answers: Tensor, temperature: float) -> Tensor:
    """−mean over views of log softmax of the image's answer among all answers and all views of other images.

    z: (V·B)×D, first all first views and so on; answers: B×D.
    """
    z, answers, images = F.normalize(z, dim=1), F.normalize(answers, dim=1), len(answers)
    image = torch.arange(images, device=z.device).repeat(len(z) // images)  # whose view a row is
    others = (z @ z.T / temperature).masked_fill(image[:, None] == image, -torch.inf)
    return F.cross_entropy(torch.cat([z @ answers.T / temperature, others], 1), image)


def same_class(labels: Tensor, known: Tensor, mode: str) -> Tensor:
    """False negatives, B×B: images of the anchor's class, as far as labels are known; never the anchor itself.

    `both`: the labels of both images must be known. `anchor`: that of the anchor is enough.
    """
    known_pairs = known[:, None] & known[None, :] if mode == "both" else known[:, None].expand(-1, len(known))
    drop = (labels[:, None] == labels[None, :]) & known_pairs
    return drop.fill_diagonal_(False)


class SimCLR(Term):
    """NT-Xent on z; with `known_labels` false negatives that a fraction of the labels reveals are left out."""

    def __init__(self, options: Options, network: Network, setting: Setting) -> None:
        super().__init__(options, network, setting)
        base = options.base_temperature
        self.factor = options.temperature / base if base else 1.0
        if options.known_labels > 0:
            self.labels = required_labels(setting, "simclr with known_labels")
            self.known = known_labels(self.labels, options.known_labels, setting.seed)

    def loss(self, step: Step) -> Outcome:
        if step.more is not None:
            return Outcome(self.factor * self._with_more(step, step.more))
        z, drop = gather(step.z(), 2), None  # 2B×D, of all processes
        if self.options.known_labels > 0:
            index = gather(step.views.index)
            drop = same_class(self.labels[index], self.known[index], self.options.false_negatives)
            drop = drop.to(z.device, non_blocking=True)
        return Outcome(self.factor * nt_xent(z, self.options.temperature, drop, self.options.decoupled))

    def _with_more(self, step: Step, more: Tensor) -> Tensor:
        """All views look for the second one; or, if that is learned from too, further views for either of the two."""
        temperature, more = self.options.temperature, gather(more, len(more) // len(step.views.index))
        if step.one_sided:
            answers = gather(step.answers(step.network.project))
            return among_views(torch.cat([gather(step.z()), more]), answers, temperature)
        z = gather(step.z(), 2)
        return nt_xent(z, temperature) + sum(among_views(more, part, temperature) for part in z.chunk(2)) / 2
