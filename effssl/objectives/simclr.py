"""SimCLR: tell the other view of an image from all other images of the batch. Chen et al. 2020."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl import config
from effssl.network import Network
from effssl.objectives.objective import Outcome, Setting, Step, Term


def nt_xent(z: Tensor, temperature: float) -> Tensor:
    """−mean over 2B anchors of log softmax over the 2B − 1 other views, at the anchor's partner.

    z: (2·B)×D, first all first views, then all second ones. Two identical pairs at right angles:

    >>> nt_xent(torch.tensor([[1., 0.], [0., 1.], [1., 0.], [0., 1.]]), 1.0)  # log(e + 1 + 1) − 1
    tensor(0.5514)
    """
    z = F.normalize(z, dim=1)
    similarity = z @ z.T / temperature  # 2B×2B
    similarity.fill_diagonal_(-torch.inf)
    anchors = torch.arange(len(z), device=z.device)
    return F.cross_entropy(similarity, anchors.roll(len(z) // 2))


class SimCLR(Term):
    """NT-Xent on z."""

    def __init__(self, options: config.SimCLR, network: Network, setting: Setting) -> None:
        super().__init__(options, network, setting)
        base = options.base_temperature
        self.factor = options.temperature / base if base else 1.0

    def loss(self, step: Step) -> Outcome:
        return Outcome(self.factor * nt_xent(step.z(), self.options.temperature))
