"""Changes of color, each with one parameter per image. Images are float N×3×H×W in [0, 1]; factors are N."""

from __future__ import annotations

import torch
from torch import Tensor

LUMA = (0.2989, 0.587, 0.114)  # torchvision's weights of red, green and blue


def to_gray(x: Tensor) -> Tensor:
    """Luminance, N×1×H×W."""
    r, g, b = x.unbind(1)
    return (r * LUMA[0]).add_(g, alpha=LUMA[1]).add_(b, alpha=LUMA[2]).unsqueeze(1)


def brightness(x: Tensor, factor: Tensor) -> Tensor:
    """Toward or away from black."""
    return (x * factor.view(-1, 1, 1, 1)).clamp_(0, 1)


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Toward or away from the image's mean luminance."""
    r, g, b = x.mean((2, 3)).unbind(1)
    mean = r * LUMA[0] + g * LUMA[1] + b * LUMA[2]
    factor = factor.view(-1, 1, 1, 1)
    return (x * factor).add_(mean.view(-1, 1, 1, 1) * (1 - factor)).clamp_(0, 1)


def saturation(x: Tensor, factor: Tensor) -> Tensor:
    """Toward or away from gray."""
    return torch.lerp(to_gray(x), x, factor.view(-1, 1, 1, 1)).clamp_(0, 1)


def hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of HSV by `shift` (−0.5 … 0.5 of a full turn).

    The smallest channel and the chroma c stay; with the new hue h in sixths of a turn, red is
    low + c·clamp(|h − 3| − 1, 0, 1), green low + c·clamp(2 − |h − 2|, 0, 1) and blue low + c·clamp(2 − |h − 4|, 0, 1).
    """
    r, g, b = x.unbind(1)  # N×H×W
    high, low = x.amax(1), x.amin(1)
    c = high.sub(low)
    # Red is the largest: (g − b)/c; green: 2 + (b − r)/c; blue: 4 + (r − g)/c. The masks are 0 or 1, so lerp selects
    # exactly; torch.where is several times slower on a CPU.
    red, green = high.clone().eq_(r), high.eq_(g)
    h = (r - g).add_(c, alpha=4).lerp_((b - r).add_(c, alpha=2), green).lerp_(g - b, red)
    h.div_(c.mul(6).clamp_(min=1e-12)).add_((shift + 1).view(-1, 1, 1)).frac_().mul_(6)
    center, sign, base = x.new_tensor([[3, 2, 4], [1, -1, -1], [-1, 2, 2]]).view(3, 1, 3, 1, 1)
    share = (h.unsqueeze(1) - center).abs_().mul_(sign).add_(base).clamp_(0, 1)
    return share.mul_(c.unsqueeze(1)).add_(low.unsqueeze(1))


def grayscale_(x: Tensor, rows: Tensor) -> Tensor:
    """Take the color from the images in these rows (their numbers), in place."""
    return x.index_copy_(0, rows, to_gray(x.index_select(0, rows)).expand(-1, 3, -1, -1))


def solarize_(x: Tensor, rows: Tensor, threshold: float) -> Tensor:
    """Invert the pixels at or above the threshold in the images in these rows, in place."""
    part = x.index_select(0, rows)
    return x.index_copy_(0, rows, torch.where(part >= threshold, 1 - part, part))


def normalize(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Subtract the mean and divide by the standard deviation, per channel."""
    m = torch.tensor(mean, device=x.device).view(1, -1, 1, 1)
    s = torch.tensor(std, device=x.device).view(1, -1, 1, 1)
    return (x - m).div_(s)
