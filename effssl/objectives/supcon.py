"""Supervised contrastive learning: all views of the same class are positives. Khosla et al. 2020."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.network.network import Network
from effssl.objectives.labels import noisy_labels, required_labels
from effssl.objectives.options import SupConOptions
from effssl.objectives.step import Step
from effssl.objectives.term import Outcome, RunInfo, Term
from effssl.runtime.distribution import gather


def sup_con(z: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Mean over anchors of −mean over their positives of log softmax over all other views.

    z: N×D, labels: N. An anchor without any positive does not count.
    """
    z = F.normalize(z, dim=1)
    similarity = (z @ z.T / temperature).fill_diagonal_(-torch.inf)  # N×N
    log_p = similarity - similarity.logsumexp(1, keepdim=True)
    positive = (labels[:, None] == labels[None, :]).fill_diagonal_(False)
    count = positive.sum(1)
    per_anchor = -torch.where(positive, log_p, 0.0).sum(1) / count.clamp(min=1)
    return per_anchor.sum() / (count > 0).sum().clamp(min=1)


class SupCon(Term):
    """SupCon on z of all online views, with a fixed share of wrong labels if asked for."""

    reads = ("online",)

    def __init__(self, options: SupConOptions, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        labels = required_labels(info, "supcon")
        self.labels = noisy_labels(labels, info.classes, options.label_noise, info.seed)
        base = options.base_temperature
        self.factor = options.temperature / base if base else 1.0

    def loss(self, step: Step) -> Outcome:
        z = gather(step.online(), dim=1)  # V×B×D, of all processes
        labels = self.labels[gather(step.views.index)].to(z.device, non_blocking=True)
        return Outcome(self.factor * sup_con(z.flatten(0, 1), labels.repeat(len(z)), self.options.temperature))
