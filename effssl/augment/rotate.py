"""Rotation with one angle per image: exact by quarter turns, bilinear by any other angle."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def rotate_quarters(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate square images N×C×S×S counter-clockwise by `turns` (N, on the CPU) quarter turns, without resampling.

    >>> x = torch.arange(4.).view(1, 1, 2, 2)
    >>> rotate_quarters(x, torch.tensor([1]))[0, 0].tolist()
    [[1.0, 3.0], [0.0, 2.0]]
    """
    images, channels, side, _ = x.shape
    pixels = torch.arange(side * side).view(side, side)
    sources = torch.stack([torch.rot90(pixels, k).flatten() for k in range(4)])  # of every pixel, by quarter turns
    rows = sources[turns % 4] + torch.arange(images)[:, None] * side * side
    flat = x.permute(0, 2, 3, 1).reshape(-1, channels)
    turned = flat.index_select(0, rows.flatten().to(x.device, non_blocking=True))
    return turned.view(images, side, side, channels).permute(0, 3, 1, 2)


def valid_share(degrees: float) -> float:
    """Side of the largest centered square free of padding after a rotation, as a share of the image's side.

    >>> round(valid_share(45), 4), round(valid_share(30), 4), valid_share(90)
    (0.7071, 0.7321, 1.0)
    """
    angle = math.radians(degrees)
    return round(1 / (abs(math.cos(angle)) + abs(math.sin(angle))), 12)


def rotate_and_crop(x: Tensor, degrees: Tensor, share: float) -> Tensor:
    """Rotate counter-clockwise about the center, keep the centered square of `share` of the side, at the old size.

    x: N×C×S×S; degrees: N, on the CPU. All in one bilinear sampling.
    """
    angle = degrees.double() * (math.pi / 180)
    cos, sin = torch.cos(angle) * share, torch.sin(angle) * share
    zero = torch.zeros_like(cos)
    # Sampling positions: the inverse rotation, in coordinates with y pointing down.
    matrix = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)  # N×2×3
    grid = F.affine_grid(matrix.to(x.device, x.dtype, non_blocking=True), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def rotate(x: Tensor, positions: Tensor, angles: tuple[float, ...]) -> Tensor:
    """Rotate each image N×C×S×S by an angle of the set: angles[positions], positions N on the CPU.

    Quarter turns are exact if the set has no other angle. Otherwise all angles, 0 too, are sampled and cropped to one
    square, that free of padding at every angle of the set, so that neither blur nor zoom gives the angle away.
    """
    degrees = torch.tensor(angles)[positions]
    if all(angle % 90 == 0 for angle in angles):
        return rotate_quarters(x, (degrees / 90).round().long())
    return rotate_and_crop(x, degrees, min(valid_share(angle) for angle in angles))
