"""Filters that are computed from patches of the training images, without labels and without gradients.

PCA filters are the principal components of patches (a whitening stem); k-means filters are centroids of whitened
patches. Coates, Ng & Lee 2011.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effssl.runtime.errors import RequestError

PATCHES = 50_000  # that filters are computed from
ITERATIONS = 8  # of k-means
PCA_EPSILON = 5e-3  # added to the variances of patches in a stem, in units of normalized pixels
ZCA_EPSILON = 0.1  # added to the variances of contrast-normalized patches
CONTRAST = 4e-3  # added to the variance within a patch: flat patches stay flat
THRESHOLD = 0.5  # a response below it is 0, so that few of them are not
CACHED = 3 << 20  # responses that are computed at a time, so that they stay in the cache
SIDE = 6  # of a patch in pixels
WORKING_SIDE = 32  # larger images are averaged down to a side between this and twice this


def sample_patches(images: Tensor, side: int, generator: torch.Generator, count: int = PATCHES) -> Tensor:
    """Random square patches of images N×C×H×W, count×(C·side²)."""
    n, _, height, width = images.shape
    if min(height, width) < side:
        raise RequestError(f"patches have {side} pixels, images {min(height, width)}; use larger images")
    image = torch.randint(n, (count, 1, 1), generator=generator)
    top = torch.randint(height - side + 1, (count, 1, 1), generator=generator)
    left = torch.randint(width - side + 1, (count, 1, 1), generator=generator)
    line = torch.arange(side)
    patches = images.permute(0, 2, 3, 1)[image, top + line[:, None], left + line]  # count×side×side×C
    return patches.permute(0, 3, 1, 2).flatten(1)


def pca_filters(patches: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest principal components scaled to unit variance, count×D, and the mean patch, D."""
    mean = patches.mean(0)
    centered = (patches - mean).double()
    values, vectors = torch.linalg.eigh(centered.T @ centered / len(centered))  # ascending
    filters = (vectors / (values.clamp(min=0) + PCA_EPSILON).sqrt()).flip(1).T[:count]
    # The sign of an eigenvector is arbitrary: the largest entry is made positive.
    largest = filters.gather(1, filters.abs().argmax(1, keepdim=True))
    return (filters * largest.sign()).float(), mean


def kmeans_filters(patches: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`count` centroids of whitened patches as filters on the patches themselves, count×D, and the mean patch, D.

    Spherical k-means: a patch belongs to the centroid with the largest cosine, whatever its contrast.
    """
    mean = patches.mean(0)
    centered = patches - mean
    values, vectors = torch.linalg.eigh((centered.T @ centered / len(centered)).double())
    whiten = (vectors * (values.clamp(min=0) + ZCA_EPSILON).rsqrt() @ vectors.T).float()
    unit = F.normalize(centered @ whiten, dim=1)
    centroids = F.normalize(torch.randn(count, unit.shape[1], generator=generator), dim=1)
    for _ in range(ITERATIONS):
        cosine, nearest = (unit @ centroids.T).max(1)
        sums = torch.zeros_like(centroids).index_add_(0, nearest, unit * cosine[:, None])
        lost = sums.norm(dim=1, keepdim=True) < 1e-6
        again = torch.randn(centroids.shape, generator=generator)
        centroids = F.normalize(torch.where(lost, again, sums), dim=1)
    return centroids @ whiten, mean


class PatchResponses(nn.Module):
    """k-means patches: normalized images N×C×S×S → pooled responses N×(2·filters·pool²).

    Every patch is normalized in contrast, whitened and compared with each centroid; responses of either sign beyond a
    threshold are averaged over pool×pool regions of the image. All linear steps are one convolution.
    """

    filters: Tensor  # K×C×side×side
    offset: Tensor  # K: the response of the mean patch

    def __init__(self, filters: int, side: int = SIDE, stride: int = 1, pool: int = 2, channels: int = 3) -> None:
        super().__init__()
        self.register_buffer("filters", torch.zeros(filters, channels, side, side))
        self.register_buffer("offset", torch.zeros(filters))
        self.side = side
        self.stride = stride
        self.pool = pool
        self.dim = 2 * filters * pool**2

    @torch.no_grad()
    def fit(self, images: Tensor, generator: torch.Generator) -> None:
        """Compute the filters from a sample of images, N×C×S×S."""
        patches = sample_patches(reduced(images), self.side, generator)
        patches = patches - patches.mean(1, keepdim=True)
        patches = patches / (patches.var(1, unbiased=False, keepdim=True) + CONTRAST).sqrt()
        filters, mean = kmeans_filters(patches, len(self.filters), generator)
        # Filters that sum to zero take the mean of a patch out by themselves.
        filters = filters - filters.mean(1, keepdim=True)
        self.filters.copy_(filters.view_as(self.filters))
        self.offset.copy_(filters @ mean)

    def forward(self, x: Tensor) -> Tensor:
        x = reduced(x)
        few = max(1, CACHED // (len(self.filters) * max(1, x.shape[-1] // self.stride) ** 2))
        if torch.compiler.is_compiling() or len(x) <= few:
            return self.responses(x)
        return torch.cat([self.responses(part) for part in x.split(few)])

    def responses(self, x: Tensor) -> Tensor:
        """The pooled responses of a few images, N×(2·filters·pool²)."""
        means = [F.avg_pool2d(y.mean(1, keepdim=True), self.side, self.stride) for y in (x, x * x)]
        deviation = (means[1] - means[0] ** 2).clamp(min=0).add(CONTRAST).sqrt()
        x = x.contiguous(memory_format=torch.channels_last)
        y = torch.addcmul(-self.offset[:, None, None], F.conv2d(x, self.filters, stride=self.stride), 1 / deviation)
        # The mean of max(0, y − t) is that of max(t, y), less t.
        above = region_means(y.clamp(min=THRESHOLD), self.pool) - THRESHOLD
        below = -region_means(y.clamp(max=-THRESHOLD), self.pool) - THRESHOLD
        return torch.cat([above, below], 1).flatten(1)


def reduced(x: Tensor) -> Tensor:
    """Images averaged down by the largest whole factor that leaves at least WORKING_SIDE pixels."""
    factor = x.shape[-1] // WORKING_SIDE
    return F.avg_pool2d(x, factor) if factor > 1 else x


def region_means(x: Tensor, regions: int) -> Tensor:
    """Means over regions×regions parts of maps N×C×S×S, N×C×regions×regions; parts of odd maps overlap by a pixel."""
    side = x.shape[-1]
    if side < regions:
        return F.interpolate(x, size=(regions, regions))
    stride = side // regions
    return F.avg_pool2d(x, side - (regions - 1) * stride, stride)


# ---------------------------------------------------------------------------------------------------------------
# Encoders that nothing is trained in: what every other encoder has to beat


class Pixels(nn.Module):
    """Normalized images N×C×S×S → their pixels at a smaller side, N×(C·side²)."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.side:
            x = F.interpolate(x, size=(self.side, self.side), mode="bilinear", antialias=True)
        return x.flatten(1)


class PatchEncoder(PatchResponses):
    """k-means patches as an encoder of their own."""

    def derive(self, images: Tensor, generator: torch.Generator, train_stem: bool = False) -> None:
        """Compute the filters from a sample of normalized images."""
        self.fit(images, generator)
