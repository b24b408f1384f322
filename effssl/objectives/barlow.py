"""Barlow Twins: each dimension of z agrees over views, and no two of them are correlated. Zbontar et al. 2021."""

from __future__ import annotations

import torch
from torch import Tensor

from effssl.objectives.step import Step
from effssl.objectives.term import Outcome, Term
from effssl.runtime.distribution import gather

EPSILON = 1e-5  # of the variance, as in batch norm, which the released code standardizes z with


def standardize(z: Tensor) -> Tensor:
    """z of each view with mean 0 and variance 1 over images, dimension by dimension. z: V×B×D."""
    centered = z - z.mean(1, keepdim=True)
    return centered * (centered.square().mean(1, keepdim=True) + EPSILON).rsqrt()


def redundancy(z: Tensor, y: Tensor, weight: float) -> Tensor:
    """Σᵢ (1 − Cᵢᵢ)² + λ Σ_{i≠j} Cᵢⱼ², C the cross-correlation of two standardized views z and y, each B×D.

    Two dimensions that agree over views and are not correlated cost nothing:

    >>> z = torch.tensor([[1., 1.], [1., -1.], [-1., 1.], [-1., -1.]])
    >>> redundancy(z, z, 0.005), redundancy(z, z.flip(1), 0.005)  # 0, and 2·(1 − 0)² + 0.005·2·1²
    (tensor(0.), tensor(2.0100))
    """
    c = z.T @ y / len(z)  # D×D
    diagonal = c.diagonal()
    return (1 - diagonal).square().sum() + weight * (c.square().sum() - diagonal.square().sum())


class BarlowTwins(Term):
    """L = mean over pairs of views of Σᵢ (1 − Cᵢᵢ)² + λ Σ_{i≠j} Cᵢⱼ², C the cross-correlation of z_v and z_t."""

    def loss(self, step: Step) -> Outcome:
        z = standardize(gather(step.online(), dim=1))  # V×B×D, of all processes
        y = standardize(gather(step.targets(), dim=1))  # T×B×D
        losses = [redundancy(z[v], y[t], self.options.redundancy) for v, t in step.pairs]
        return Outcome(torch.stack(losses).mean())
