"""Total coding rate (EMP-SSL): views agree with their mean, and images fill the space of z. Tong et al. 2023."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.network.network import Network
from effssl.objectives.online import require_two_views
from effssl.objectives.options import TCROptions
from effssl.objectives.step import Step
from effssl.objectives.term import Outcome, RunInfo, Term
from effssl.runtime.distribution import gather


def coding_rate(z: Tensor, epsilon_squared: float) -> Tensor:
    """R(Z_v) = ½ logdet(I + D/(B ε²) Z_vᵀZ_v) of each view, V. z: V×B×D, of unit length.

    Two images with orthogonal z take more bits than two images with the same z:

    >>> coding_rate(torch.tensor([[[1., 0.], [0., 1.]], [[1., 0.], [1., 0.]]]), 0.2)  # log(6), ½ log(11)
    tensor([1.7918, 1.1989])
    """
    _, images, dim = z.shape
    gram = z @ z.mT if images < dim else z.mT @ z  # the smaller one: both have the same determinant (Sylvester)
    identity = torch.eye(gram.shape[1], dtype=z.dtype, device=z.device)
    # Positive definite: its eigenvalues lie between 1 and 1 + D/ε², so nobody need wait for Cholesky's error code.
    factor, _ = torch.linalg.cholesky_ex(identity + dim / (images * epsilon_squared) * gram)
    return factor.diagonal(dim1=1, dim2=2).log().sum(1)  # det(LLᵀ) = det(L)²


class TCR(Term):
    """L = λ·(1 − mean over views of cos(z_v, z̄)) − mean over views of R(Z_v), z̄ the mean of an image's views."""

    reads = ("online",)

    def __init__(self, options: TCROptions, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        require_two_views(info, "tcr")

    def loss(self, step: Step) -> Outcome:
        z = F.normalize(gather(step.online(), dim=1), dim=2)  # V×B×D, of all processes
        cosine = F.cosine_similarity(z, z.mean(0, keepdim=True), dim=2)  # V×B
        rate = coding_rate(z, self.options.epsilon_squared)  # V
        return Outcome(self.options.invariance * (1 - cosine.mean()) - rate.mean())
