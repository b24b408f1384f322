"""Random resized crop and flip, as two batched matrix products.

An output pixel is a weighted mean of the input pixels below its filter, first along x, then along y. Both sums are
matrix products with one small matrix per image, so boxes of any size, antialiasing and flips cost one pass.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FAR = 1e6  # farther than any filter reaches
TRIES = 10  # as torchvision: so many boxes are drawn before the center crop is taken


def draw_box_numbers(count: int, scale: tuple[float, float], ratio: tuple[float, float], g: torch.Generator) -> Tensor:
    """The random part of `count` boxes, independent of image sizes: area and aspect per try, then two positions."""
    numbers = torch.rand(count, 2 * TRIES + 2, generator=g, dtype=torch.float64)
    numbers[:, :TRIES] = scale[0] + (scale[1] - scale[0]) * numbers[:, :TRIES]
    low, high = math.log(ratio[0]), math.log(ratio[1])
    numbers[:, TRIES : 2 * TRIES] = (low + (high - low) * numbers[:, TRIES : 2 * TRIES]).exp()
    return numbers


def boxes(sizes: Tensor, numbers: Tensor, ratio: tuple[float, float]) -> Tensor:
    """Crop boxes (top, left, height, width), N×4, for images of `sizes` (height, width), N×2.

    The rule is torchvision's: the first try that fits inside the image, else the largest center crop whose aspect is
    allowed. `numbers` come from `draw_box_numbers`.
    """
    height, width = sizes[:, :1].double(), sizes[:, 1:].double()  # N×1
    area, aspect = numbers[:, :TRIES] * height * width, numbers[:, TRIES : 2 * TRIES]  # N×tries
    w, h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (w > 0) & (h > 0) & (w <= width) & (h <= height)
    first = fits.float().argmax(1, keepdim=True)
    w, h = w.gather(1, first), h.gather(1, first)  # N×1

    image_aspect = width / height
    center_w = torch.where(image_aspect > ratio[1], (height * ratio[1]).round(), width)
    center_h = torch.where(image_aspect < ratio[0], (width / ratio[0]).round(), height)
    found = fits.any(1, keepdim=True)
    w, h = torch.where(found, w, center_w), torch.where(found, h, center_h)
    top = torch.where(found, (numbers[:, -2:-1] * (height - h + 1)).floor(), ((height - h) / 2).floor())
    left = torch.where(found, (numbers[:, -1:] * (width - w + 1)).floor(), ((width - w) / 2).floor())
    return torch.cat([top, left, h, w], 1).long()


def padded_boxes(sizes: Tensor, numbers: Tensor, pad: int) -> Tensor:
    """Boxes as large as the image, moved by up to `pad` pixels each way, N×4: they reach beyond its edges."""
    corner = (numbers[:, -2:] * (2 * pad + 1)).floor().long() - pad
    return torch.cat([corner, sizes.long()], 1)


def center_boxes(sizes: Tensor, share: float) -> Tensor:
    """The square in the middle whose side is `share` of the shorter side, N×4."""
    side = (sizes.min(1).values.double() * share).round()
    top, left = ((sizes[:, 0] - side) / 2).round(), ((sizes[:, 1] - side) / 2).round()
    return torch.stack([top, left, side, side], 1).long()


def _triangle(x: Tensor) -> Tensor:
    return torch.rsub(x.abs_(), 1).clamp_(min=0)


def _cubic(x: Tensor) -> Tensor:
    a = -0.5  # PIL's and torchvision's antialiased bicubic
    x = x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def filter_weights(start: Tensor, length: Tensor, size: int, out: int, flip: Tensor | None, name: str) -> Tensor:
    """Resampling matrices N×out×size: `length` pixels from `start` on become `out` pixels, reversed where flipped."""
    scale = (length.float() / out)[:, None]  # N×1
    reach = scale.clamp(min=1)  # antialiasing: when shrinking, the filter grows with the scale
    i = torch.arange(out, dtype=torch.float32, device=start.device)
    i = i[None] if flip is None else torch.where(flip[:, None], out - 1 - i, i)
    j = torch.arange(size, dtype=torch.float32, device=start.device) - start.float()[:, None]  # N×size, inside the box
    outside = (j < 0) | (j >= length.float()[:, None])
    j = ((j + 0.5) / reach).masked_fill_(outside, FAR)
    distance = j[:, None, :] - ((i + 0.5) * scale / reach)[:, :, None]  # N×out×size, in reaches
    weights = _triangle(distance) if name == "bilinear" else _cubic(distance)
    return weights.div_(weights.sum(-1, keepdim=True).clamp_(min=1e-12))  # pixels off the image stay black


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Apply resampling matrices: images N×C×H×W, rows N×h×H, columns N×w×W → float N×C×h×w.

    With channels between height and width, both products are one matrix per image and nothing is copied for them.
    """
    n, c, height, width = images.shape
    x = images.transpose(1, 2).contiguous().float()  # N×H×C×W
    x = torch.bmm(rows, x.view(n, height, c * width))  # N×h×(C·W)
    x = torch.bmm(x.view(n, -1, width), columns.transpose(1, 2))  # N×(h·C)×w
    return x.view(n, rows.shape[1], c, -1).transpose(1, 2).contiguous()


def crop_resize(images: Tensor, box: Tensor, size: int, flip: Tensor | None = None, filter: str = "bilinear") -> Tensor:
    """Cut each image's box (top, left, height, width) and resize it to size×size, antialiased, flipped where told.

    Images are uint8 or float, N×C×H×W; the result is float in the same range.
    """
    height, width = images.shape[-2:]
    rows = filter_weights(box[:, 0], box[:, 2], height, size, None, filter)
    columns = filter_weights(box[:, 1], box[:, 3], width, size, flip, filter)
    return resample(images, rows, columns)


def resize(images: Tensor, size: int, filter: str = "bilinear") -> Tensor:
    """Resize whole images N×C×H×W to size×size, antialiased."""
    height, width = images.shape[-2:]
    whole = torch.tensor([[0, 0, height, width]], device=images.device)
    rows = filter_weights(whole[:, 0], whole[:, 2], height, size, None, filter)[0]
    columns = filter_weights(whole[:, 1], whole[:, 3], width, size, None, filter)[0]
    return rows @ (images.float() @ columns.T)
