"""Random resized crop and flip: two batched matrix products, or bilinear sampling where images are small.

An output pixel is a weighted mean of the input pixels below its filter, first along y, then along x. Both sums are
matrix products with one small matrix per view, so boxes of any size, antialiasing and flips cost one pass. Where no box
can be larger than its view, bilinear sampling computes the same in fewer operations.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.augment.center import cubic

FAR = 1e6  # farther than any filter reaches
TRIES = 10  # boxes drawn before the center crop is taken, as in torchvision
NUMBERS = 2 * TRIES + 2  # uniform numbers per box


def box_parameters(u: Tensor, scale: tuple[float, float], ratio: tuple[float, float]) -> Tensor:
    """Random parameters of boxes, independent of image sizes, from uniform numbers …×NUMBERS in double precision.

    Share of the area and aspect ratio per try, then two positions.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    area = u[..., :TRIES] * (scale[1] - scale[0]) + scale[0]
    aspect = (u[..., TRIES : 2 * TRIES] * (high - low) + low).exp_()
    return torch.cat([area, aspect, u[..., 2 * TRIES :]], -1)


def boxes(sizes: Tensor, parameters: Tensor, ratio: tuple[float, float]) -> Tensor:
    """Crop boxes (top, left, height, width), N×4, for images of `sizes` (height, width), N×2, all on the CPU.

    The rule is torchvision's: the first try that fits inside the image, else the largest center crop whose aspect is
    allowed. `parameters` come from `box_parameters`.
    """
    sizes = sizes.double()
    height, width = sizes[:, :1], sizes[:, 1:]  # N×1
    area, aspect = parameters[:, :TRIES] * (height * width), parameters[:, TRIES : 2 * TRIES]  # N×tries
    w, h = (area * aspect).sqrt_().round_(), (area / aspect).sqrt_().round_()
    fits = (w <= width) & (h <= height) & (torch.minimum(w, h) > 0)
    found, first = fits.max(1, keepdim=True)
    side = torch.cat([h.gather(1, first), w.gather(1, first)], 1)  # N×2
    corner = (parameters[:, 2 * TRIES :] * (sizes - side + 1)).floor_()
    if not bool(found.all()):
        center_w = torch.minimum(width, (height * ratio[1]).round())
        center_h = torch.minimum(height, (width / ratio[0]).round())
        center = torch.cat([center_h, center_w], 1)
        side = torch.where(found, side, center)
        corner = torch.where(found, corner, ((sizes - center) / 2).floor())
    return torch.cat([corner, side], 1).long()


def padded_boxes(sizes: Tensor, parameters: Tensor, pad: int) -> Tensor:
    """Boxes as large as the image, shifted by up to `pad` pixels each way, N×4: they reach beyond its edges."""
    corner = (parameters[:, -2:] * (2 * pad + 1)).floor().long() - pad
    return torch.cat([corner, sizes.long()], 1)


def center_boxes(sizes: Tensor, share: float) -> Tensor:
    """The center square whose side is `share` of the shorter side, N×4."""
    side = (sizes.min(1).values.double() * share).round()
    top, left = ((sizes[:, 0] - side) / 2).round(), ((sizes[:, 1] - side) / 2).round()
    return torch.stack([top, left, side, side], 1).long()


# Filters are negative, which saves a pass; weights are divided by their sum anyway.
def _triangle(x: Tensor) -> Tensor:
    return x.abs_().sub_(1).clamp_(max=0)


def _cubic(x: Tensor) -> Tensor:
    return cubic(x.abs()).neg_()


def filter_weights(start: Tensor, length: Tensor, size: int, out: int, flip: Tensor | None, name: str) -> Tensor:
    """Resampling matrices N×out×size: `length` pixels from `start` on become `out` pixels, reversed where flipped."""
    start, length = start.float()[:, None], length.float()[:, None]  # N×1
    scale = length / out
    reach = scale.clamp(min=1)  # antialiasing: when shrinking, the filter grows with the scale
    i = torch.arange(out, dtype=torch.float32, device=start.device)
    i = i[None] if flip is None else torch.where(flip[:, None], out - 1 - i, i)
    j = torch.arange(size, dtype=torch.float32, device=start.device) - start  # N×size, inside the box
    outside = (j < 0) | (j >= length)
    j = j.add_(0.5).div_(reach).masked_fill_(outside, FAR)
    distance = j[:, None, :] - ((i + 0.5) * (scale / reach))[:, :, None]  # N×out×size, in reaches
    weights = _triangle(distance) if name == "bilinear" else _cubic(distance)
    return weights.div_(weights.sum(-1, keepdim=True).clamp_(max=-1e-12))  # pixels off the image stay black


def resample(images: Tensor, rows: Tensor, columns: Tensor, factor: float = 1.0) -> Tensor:
    """Apply resampling matrices, V of each per image: images N×C×H×W, rows NV×h×H, columns NV×w×W → float N×C×Vh×w.

    With channels between height and width, both are plain products of matrices and nothing is copied for them.
    """
    n, c, height, width = images.shape
    x = images.new_empty(n, height, c, width, dtype=torch.float32)
    x.copy_(images.transpose(1, 2)).mul_(factor)  # N×H×C×W
    x = torch.bmm(rows.view(n, -1, height), x.view(n, height, c * width))  # N×(V·h)×(C·W)
    x = torch.bmm(x.view(len(columns), -1, width), columns.transpose(1, 2))  # NV×(h·C)×w
    return x.view(n, -1, c, x.shape[2]).transpose(1, 2).contiguous()


def sample(images: Tensor, box: Tensor, size: int, flip: Tensor | None, factor: float = 1.0) -> Tensor:
    """Bilinear views of boxes no larger than they are, V per image: N×C×H×W and NV×4 → float N×C×(V·size)×size."""
    n, _, height, width = images.shape
    start, length = box.float()[:, :, None].split(2, 1)  # NV×2×1: y and x
    middle, first = torch.arange(0.5, size, device=box.device) / size, start + 0.5
    at = torch.addcmul(start, length, middle).clamp_(first, first + length - 1)  # the box ends there
    y, x = at.unbind(1)  # NV×size
    y, x = y * (2 / height) - 1, x * (2 / width) - 1  # −1 … 1 over the image
    if flip is not None:
        x = torch.where(flip[:, None], x.flip(-1), x)
    grid = torch.view_as_real(torch.complex(x[:, None, :], y[:, :, None]))  # pairs in one pass: NV×size×size×2
    pixels = images.to(torch.float32, copy=True).mul_(factor)
    return F.grid_sample(pixels, grid.view(n, -1, size, 2), align_corners=False)  # off the image it is black


def crop_resize(
    images: Tensor,
    box: Tensor,
    size: int,
    flip: Tensor | None = None,
    filter: str = "bilinear",
    factor: float = 1.0,
) -> Tensor:
    """Crop boxes (top, left, height, width) and resize them to size×size, antialiased, flipped where `flip` is true.

    Images are uint8 or float, N×C×H×W; the result is float, `factor` times as bright. There may be V boxes per image,
    NV×4, those of an image together; its views are stacked along the height, N×C×(V·size)×size. Pixels off the image
    are black; that edge is blurred like any other where a box is enlarged bilinearly, and sharp otherwise.
    """
    height, width = images.shape[-2:]
    if filter == "bilinear" and max(height, width) <= size:
        return sample(images, box, size, flip, factor)
    start, length = box[:, :2].T, box[:, 2:].T  # each 2×NV
    if height == width:  # both sides at once
        flips = None if flip is None else torch.cat([torch.zeros_like(flip), flip])
        both = filter_weights(start.reshape(-1), length.reshape(-1), height, size, flips, filter)
        return resample(images, both[: len(box)], both[len(box) :], factor)
    rows = filter_weights(start[0], length[0], height, size, None, filter)
    return resample(images, rows, filter_weights(start[1], length[1], width, size, flip, filter), factor)


def resize(images: Tensor, size: int, filter: str = "bilinear") -> Tensor:
    """Resize whole images N×C×H×W to size×size, antialiased."""
    height, width = images.shape[-2:]
    whole = torch.tensor([[0, 0, height, width]], device=images.device)
    rows = filter_weights(whole[:, 0], whole[:, 2], height, size, None, filter)[0]
    columns = filter_weights(whole[:, 1], whole[:, 3], width, size, None, filter)[0]
    return rows @ (images.float() @ columns.T)
