"""Changes of color in place. Images are float N×3×V×P in [0, 1]: V views of N images, P pixels each; factors N×1×V×1.

In place, since on a CPU a pass over pixels that lie in the cache takes less than half the time of one that fills fresh
memory. Constants are plain numbers: a tensor of them would have to be brought to a GPU in every step.
"""

from __future__ import annotations

import torch
from torch import Tensor

LUMA = (0.2989, 0.587, 0.114)  # torchvision's weights of red, green and blue


def to_gray(x: Tensor) -> Tensor:
    """Luminance, N×1×V×P."""
    r, g, b = x.unbind(1)
    return (r * LUMA[0]).add_(g, alpha=LUMA[1]).add_(b, alpha=LUMA[2]).unsqueeze(1)


def brightness_(x: Tensor, factor: Tensor) -> Tensor:
    """Toward or away from black."""
    return x.mul_(factor).clamp_(0, 1)


def contrast_(x: Tensor, factor: Tensor) -> Tensor:
    """Toward or away from a view's mean luminance."""
    mean = to_gray(x.mean(3, keepdim=True))
    return x.mul_(factor).add_(mean * (1 - factor)).clamp_(0, 1)


def saturation_(x: Tensor, factor: Tensor) -> Tensor:
    """Toward or away from gray."""
    return x.lerp_(to_gray(x), 1 - factor).clamp_(0, 1)


def hue_(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of HSV by `shift` (−0.5 … 0.5 of a full turn).

    With low and c, the smallest channel and the chroma, the hue t in turns satisfies
    |t − 1/2| = 1/3 + (r − g − b + low)/6c, and t < 1/2 where g > b. The new color keeps low and c: red is
    low − c + 6c·clamp(|t − 1/2|), green low + 2c − 6c·clamp(|t − 1/3|) and blue low + 2c − 6c·clamp(|t − 2/3|), where
    distances are clamped to 1/6 … 1/3. Channels serve as memory for what is in between as soon as they have been read.
    """
    r, g, b = x.unbind(1)  # N×V×P
    low = x.amin(1)
    c = x.amax(1).sub_(low).clamp_(min=1e-12)
    away = (r - g).sub_(b).add_(low).div_(c).add_(2)  # 6·|t − 1/2|
    away.mul_(torch.ge(b, g, out=g).sub_(0.5))  # 3·(t − 1/2)
    turn = torch.add(shift.squeeze(1) + 1.5, away, alpha=1 / 3, out=away).frac_()  # the new hue, 0 … 1
    _ramp_(r, turn, 1 / 2, low.sub_(c), c, 6)
    low.add_(c, alpha=3)  # low + 2c
    _ramp_(g, turn, 1 / 3, low, c, -6)
    _ramp_(b, turn, 2 / 3, low, c, -6)
    return x


def _ramp_(channel: Tensor, turn: Tensor, center: float, base: Tensor, c: Tensor, slope: float) -> None:
    near = torch.sub(turn, center, out=channel).abs_().clamp_(1 / 6, 1 / 3)
    torch.addcmul(base, near, c, value=slope, out=channel)


def grayscale_(x: Tensor, chosen: Tensor) -> Tensor:
    """Take the color from the chosen views: 1, and 0 for the others."""
    return x.lerp_(to_gray(x), chosen)


def brightness_contrast_(x: Tensor, brightness: Tensor, contrast: Tensor) -> Tensor:
    """Both, of each channel by itself and about its own mean: images N×C×V×P, factors N×C×V×1.

    Nothing is clamped: values of a measurement have no bounds.
    """
    mean = x.mean(3, keepdim=True)
    return x.mul_(brightness * contrast).add_(mean * brightness * (1 - contrast))


def normalize_(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Subtract the mean and divide by the standard deviation, per channel (the second dimension)."""
    for channel, m, s in zip(x.unbind(1), mean, std, strict=True):
        torch.add(channel.new_full((), -m / s), channel, alpha=1 / s, out=channel)  # one pass
    return x


def normalize(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """The same for images N×C×H×W and not in place, in float32: they belong to somebody else, or have a gradient."""
    m = torch.tensor(mean, device=x.device).view(1, -1, 1, 1)
    s = torch.tensor(std, device=x.device).view(1, -1, 1, 1)
    return (x - m).div_(s)
