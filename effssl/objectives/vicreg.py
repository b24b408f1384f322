"""VICReg: views agree, every dimension of z keeps its variance, and no two are correlated. Bardes et al. 2022."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.network.network import Network
from effssl.objectives.online import require_two_views
from effssl.objectives.options import VICRegOptions
from effssl.objectives.step import Step
from effssl.objectives.term import Outcome, RunInfo, Term
from effssl.runtime.distribution import gather

EPSILON = 1e-4  # the paper's; without it the gradient of the root has no bound where z has collapsed


def variance(z: Tensor) -> Tensor:
    """v: mean over views and dimensions of max(0, 1 − √(Var + ε)), the variance over images. z: V×B×D."""
    std = (z.var(1) + EPSILON).sqrt()  # V×D
    return F.relu(1 - std).mean()


def covariance(z: Tensor) -> Tensor:
    """c: mean over views of the squared covariances of any two dimensions, summed, over D. z: V×B×D."""
    _, images, dim = z.shape
    z = z - z.mean(1, keepdim=True)
    cov = z.mT @ z / (images - 1)  # V×D×D
    diagonal = torch.eye(dim, dtype=torch.bool, device=z.device)
    return cov.masked_fill(diagonal, 0.0).square().sum((1, 2)).mean() / dim


class VICReg(Term):
    """L = λ·s + 2μ·v + 2ν·c, s the mean over pairs of views of MSE(z_v, z_t), v and c means over online views.

    With two views that are both online and targets this is λ·s(Z, Z′) + μ[v(Z) + v(Z′)] + ν[c(Z) + c(Z′)]. s is a mean
    over dimensions too, as in the paper's Algorithm 1. The released code halves μ.
    """

    def __init__(self, options: VICRegOptions, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        require_two_views(info, "vicreg")

    def loss(self, step: Step) -> Outcome:
        z = gather(step.online(), dim=1)  # V×B×D, of all processes
        y = gather(step.targets(), dim=1)  # T×B×D
        invariance = torch.stack([F.mse_loss(z[v], y[t]) for v, t in step.pairs]).mean()
        options = self.options
        spread = 2 * options.variance * variance(z) + 2 * options.covariance * covariance(z)
        return Outcome(options.invariance * invariance + spread)
