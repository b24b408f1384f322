"""The test transform: a center square, resized to the gray level as PIL resizes images that it decodes.

PIL rounds its weights to 22 bits, and gray levels after each of its two passes. Sums of such numbers are exact in
double precision, so that a program which is exported with this code computes the features of `effssl embed`.
"""

from __future__ import annotations

import torch
from torch import Tensor

WEIGHT = 1 << 22  # a weight of 1
CUBIC = -0.5  # PIL's free parameter of the cubic filter


def center_square(images: Tensor, size: int, share: float, filter: str) -> Tensor:
    """Center squares whose side is `share` of the shorter side: uint8 N×C×H×W → gray levels N×C×size×size, float32."""
    height, width = images.shape[-2:]
    h, w = (torch.scalar_tensor(length, dtype=torch.float64, device=images.device) for length in (height, width))
    side = (torch.minimum(h, w) * share).round()
    columns = _weights(width, ((w - side) / 2).round(), side, size, filter, images.device)
    rows = _weights(height, ((h - side) / 2).round(), side, size, filter, images.device)
    x = _levels(images.to(torch.float64) @ columns.T)  # N×C×H×size
    return _levels(rows @ x).to(torch.float32)


def _weights(length: int, start: Tensor, side: Tensor, size: int, filter: str, device: torch.device) -> Tensor:
    """The matrix size×length that resizes the `side` pixels from `start` on, in units of 1 / WEIGHT."""
    scale = side / size
    reach = scale.clamp(min=1)  # antialiasing: when shrinking, the filter grows with the scale
    i = torch.arange(size, dtype=torch.float64, device=device)[:, None]
    j = torch.arange(length, dtype=torch.float64, device=device)[None] - start
    distance = ((j - (i + 0.5) * scale + 0.5) * (1 / reach)).abs()
    weights = _triangle(distance) if filter == "bilinear" else cubic(distance)
    weights = torch.where((j >= 0) & (j < side), weights, torch.zeros_like(weights))
    weights = weights / weights.sum(1, keepdim=True)
    return weights.sign() * (weights.abs() * WEIGHT + 0.5).floor()


def _triangle(x: Tensor) -> Tensor:
    return (1 - x).clamp(min=0)


def cubic(x: Tensor) -> Tensor:
    """The cubic filter at distances x ≥ 0."""
    near = ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * CUBIC
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def _levels(sums: Tensor) -> Tensor:
    """Rounded gray levels of weighted sums."""
    return (sums / WEIGHT + 0.5).floor().clamp(0, 255)
