"""Changes of color in place, each with one parameter per image. Images are float N×3×H×W in [0, 1]; factors are N.

In place, since on a CPU a pass over pixels that lie in the cache takes less than half the time of one that fills fresh
memory. Constants are plain numbers: a tensor of them would have to be brought to a GPU in every step.
"""

from __future__ import annotations

import torch
from torch import Tensor

LUMA = (0.2989, 0.587, 0.114)  # torchvision's weights of red, green and blue


def to_gray(x: Tensor) -> Tensor:
    """Luminance, N×1×H×W."""
    r, g, b = x.unbind(1)
    return (r * LUMA[0]).add_(g, alpha=LUMA[1]).add_(b, alpha=LUMA[2]).unsqueeze(1)


def brightness_(x: Tensor, factor: Tensor) -> Tensor:
    """Toward or away from black."""
    return x.mul_(factor.view(-1, 1, 1, 1)).clamp_(0, 1)


def contrast_(x: Tensor, factor: Tensor) -> Tensor:
    """Toward or away from the image's mean luminance."""
    r, g, b = x.mean((2, 3)).unbind(1)
    mean = r * LUMA[0] + g * LUMA[1] + b * LUMA[2]  # N
    return x.mul_(factor.view(-1, 1, 1, 1)).add_((mean * (1 - factor)).view(-1, 1, 1, 1)).clamp_(0, 1)


def saturation_(x: Tensor, factor: Tensor) -> Tensor:
    """Toward or away from gray."""
    return x.lerp_(to_gray(x), (1 - factor).view(-1, 1, 1, 1)).clamp_(0, 1)


def hue_(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of HSV by `shift` (−0.5 … 0.5 of a full turn).

    With low and c, the smallest channel and the chroma, the hue h in sixths of a turn satisfies
    |h − 3| = 2 + (r − g − b + low)/c, and h < 3 where g > b. The new color keeps low and c: red is
    low + c·clamp(|h − 3| − 1, 0, 1), green low + c·clamp(2 − |h − 2|, 0, 1) and blue low + c·clamp(2 − |h − 4|, 0, 1).
    """
    r, g, b = x.unbind(1)  # N×H×W
    low = x.amin(1)
    c = x.amax(1).sub_(low).clamp_(min=1e-12)
    away = (r - g).sub_(b).add_(low).div_(c).add_(2)  # |h − 3|
    turn = away.copysign_(g - b).mul_(-1 / 6).add_((shift + 1.5).view(-1, 1, 1)).frac_()  # the new hue, 0 … 1
    for channel, (center, slope, base) in zip((r, g, b), ((1 / 2, 6, -1), (1 / 3, -6, 2), (2 / 3, -6, 2)), strict=True):
        torch.sub(turn, center, out=channel).abs_().mul_(slope).add_(base).clamp_(0, 1).mul_(c).add_(low)
    return x


def grayscale_(x: Tensor, rows: Tensor) -> Tensor:
    """Take the color from the images in these rows (their numbers)."""
    return x.index_copy_(0, rows, to_gray(x.index_select(0, rows)).expand(-1, 3, -1, -1))


def solarize_(x: Tensor, rows: Tensor, threshold: float) -> Tensor:
    """Invert the pixels at or above the threshold in the images in these rows."""
    part = x.index_select(0, rows)
    return x.index_copy_(0, rows, torch.where(part >= threshold, 1 - part, part))


def normalize_(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Subtract the mean and divide by the standard deviation, per channel."""
    for channel, m, s in zip(x.unbind(1), mean, std, strict=True):
        channel.sub_(m).div_(s)
    return x


def normalize(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """The same not in place, in float32: for images that belong to somebody else, or have a gradient."""
    m = torch.tensor(mean, device=x.device).view(1, -1, 1, 1)
    s = torch.tensor(std, device=x.device).view(1, -1, 1, 1)
    return (x - m).div_(s)
