"""Gaussian blur with one width per image: a matrix product along each side, borders reflected."""

from __future__ import annotations

import torch
from torch import Tensor

from effssl.augment.change import Change
from effssl.augment.crop import resample
from effssl.augment.options import Augment


def blur_weights(sigma: Tensor, size: int, kernel: int) -> Tensor:
    """Blur matrices N×size×size; what would fall outside the image is reflected back, as torchvision pads."""
    reach = kernel // 2
    offset = torch.arange(-reach, reach + 1, device=sigma.device)
    weight = torch.exp(-0.5 * (offset / sigma[:, None]) ** 2)  # N×kernel
    weight = weight / weight.sum(1, keepdim=True)
    source = torch.arange(size, device=sigma.device)[:, None] + offset  # size×kernel
    source = source.abs()
    source = torch.where(source > size - 1, 2 * (size - 1) - source, source)
    matrix = torch.zeros(len(sigma), size, size, device=sigma.device)
    return matrix.scatter_add_(2, source.expand(len(sigma), -1, -1), weight[:, None].expand(-1, size, -1).contiguous())


def gaussian_blur(x: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Blur images N×C×H×W with standard deviations sigma (N), in pixels, and a kernel of odd width."""
    height, width = x.shape[-2:]
    rows = blur_weights(sigma, height, kernel)
    return resample(x, rows, rows if width == height else blur_weights(sigma, width, kernel))


def _sigma(config: Augment, uniform: Tensor) -> Tensor:
    least, most = config.blur_sigma
    return least + (most - least) * uniform


def _blur(config: Augment, x: Tensor, sigma: Tensor) -> Tensor:
    return gaussian_blur(x, sigma, config.blur_kernel or max(3, x.shape[-1] // 20 * 2 + 1))


CHANGE = Change(lambda config: config.blur, _sigma, _blur)
