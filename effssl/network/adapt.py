"""Weights of a network that differs from ours in its stem, its input channels or its number of patches."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

POSITIONS = ("pos_embed", "pos_embedding")  # timm's and torchvision's names of position embeddings, 1×(extra + N)×D
EXTRA = (1, 0, 2)  # tokens before those of the patches: of the class, none, or of a class and a teacher (DeiT)


def adapt(key: str, weight: Tensor, shape: tuple[int, ...], first: str) -> tuple[Tensor, str] | None:
    """A weight in another shape, and what was done to it; None if it cannot be adapted.

    `first` is the key of the first convolution, the only one whose channels and kernels may differ.
    """
    if key == first and weight.ndim == 4 and weight.shape[0] == shape[0]:
        return _adapt_first(weight, shape)
    if key.rpartition(".")[2] in POSITIONS and weight.ndim == 3 and weight.shape[2] == shape[2]:
        return _adapt_positions(weight, shape)
    return None


def _adapt_first(weight: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, str] | None:
    """Filters of other channels become their mean, of the same response to equal channels; kernels are resized."""
    done = []
    if weight.shape[1] != shape[1]:
        old = weight.shape[1]
        if old not in (1, 3):  # what other channels mean is not known
            return None
        weight = weight.mean(1, keepdim=True).expand(-1, shape[1], -1, -1) * (old / shape[1])
        what = "gray filters" if old == 1 else f"the mean of filters of {old} channels"
        done.append(f"{what} for {shape[1]} channels")
    if weight.shape[2:] != shape[2:]:
        old, new = weight.shape[-1], shape[-1]
        # A pattern that is smaller by this factor gets the same response: the sum over a kernel stays as it is.
        resized = F.interpolate(weight.float(), shape[2:], mode="bilinear", antialias=True, align_corners=False)
        weight = resized * (weight.shape[2] * weight.shape[3] / (shape[2] * shape[3]))
        done.append(f"kernels of the first convolution resized from {old}×{old} to {new}×{new}")
    return weight, " and ".join(done)


def _adapt_positions(weight: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, str] | None:
    """Position embeddings of a square grid of patches, resized; those of class tokens stay."""
    counts = [(extra, weight.shape[1] - extra, shape[1] - extra) for extra in EXTRA]
    grids = [(extra, math.isqrt(a), math.isqrt(b)) for extra, a, b in counts if a > 0 and b > 0]
    square = [g for g in grids if g[1] ** 2 + g[0] == weight.shape[1] and g[2] ** 2 + g[0] == shape[1]]
    if not square:
        return None
    extra, old, new = square[0]
    grid = weight[:, extra:].float().unflatten(1, (old, old)).permute(0, 3, 1, 2)
    resized = F.interpolate(grid, (new, new), mode="bicubic", antialias=True, align_corners=False)
    positions = resized.permute(0, 2, 3, 1).flatten(1, 2)
    merged = F.pad(positions, (0, 0, extra, 0))
    merged[:, :extra] = weight[:, :extra]
    return merged, f"position embeddings resized from {old}×{old} to {new}×{new}"
