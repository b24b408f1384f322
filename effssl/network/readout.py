"""What a finished encoder gives for an image: its late feature maps and patch responses, whitened without labels."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from effssl.network.options import Readout as ReadoutOptions
from effssl.network.patches import PatchResponses

VARIANCE_EPSILON = 1e-6  # of a feature, below which it counts as constant
SHRINKAGE = 1e-3  # share of the mean variance that is added to each, so that noise is not blown up


class Whitening(nn.Module):
    """x ↦ W(x − mean): standardize, project on the largest principal components, scale each to unit variance."""

    mean: Tensor  # D
    matrix: Tensor  # dim×D

    def __init__(self, inputs: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("matrix", torch.zeros(min(dim, inputs), inputs))

    @torch.no_grad()
    def fit(self, features: Iterable[Tensor]) -> None:
        """Compute the transform from batches of features, each N×D, in one pass."""
        count, total = 0, torch.zeros(len(self.mean), dtype=torch.float64)
        products = torch.zeros(len(self.mean), len(self.mean), dtype=torch.float64)
        first: Tensor | None = None
        for x in features:
            x = x.cpu().double()
            first = x.mean(0) if first is None else first  # sums of centered numbers do not cancel
            x = x - first
            count += len(x)
            total += x.sum(0)
            products += x.T @ x
        assert first is not None, "no features to whiten"
        mean = total / count
        covariance = products / count - torch.outer(mean, mean)
        scale = (covariance.diagonal() + VARIANCE_EPSILON).rsqrt()
        values, vectors = torch.linalg.eigh(covariance * torch.outer(scale, scale))  # ascending
        dim = len(self.matrix)
        values, vectors = values.flip(0)[:dim].clamp(min=0), vectors.flip(1)[:, :dim]
        # The sign of an eigenvector is arbitrary: the largest entry is made positive.
        vectors = vectors * vectors.gather(0, vectors.abs().argmax(0, keepdim=True)).sign()
        matrix = vectors * (values + SHRINKAGE * values.mean()).rsqrt()
        self.mean.copy_((first + mean).to(self.mean))
        self.matrix.copy_((scale[:, None] * matrix).T.to(self.matrix))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) @ self.matrix.T


class Readout(nn.Module):
    """Features of a finished encoder: h joined with means of its late maps, and patch responses, both whitened.

    Each of the two becomes `dim` numbers of unit variance by itself, so that neither outweighs the other.
    """

    def __init__(self, options: ReadoutOptions, joined: int) -> None:
        """`joined` is the width of what the encoder joins: h, and the means of its maps."""
        super().__init__()
        self.options = options
        self.whitening = Whitening(joined, options.dim)
        self.dim = len(self.whitening.matrix)
        self.patches: PatchResponses | None = None
        self.patch_whitening: Whitening | None = None
        if options.patches:
            self.patches = PatchResponses(options.patches, stride=options.patch_stride)
            self.patch_whitening = Whitening(self.patches.dim, options.dim)
            self.dim += len(self.patch_whitening.matrix)

    def forward(self, x: Tensor, joined: Tensor) -> Tensor:
        """normalized images N×3×S×S and joined features N×D → N×dim"""
        features = self.whitening(joined)
        if self.patches is None or self.patch_whitening is None:
            return features
        return torch.cat([features, self.patch_whitening(self.patches(x))], 1)
