"""One random view per image: crop and flip (`cut`), then jitter, gray, blur, solarize, normalize (`recolor`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache

import torch
from torch import Tensor

from effssl.augment import blur, color, crop
from effssl.config import Augment

SALIENCY_TRIES = 10  # boxes drawn per view where a crop must beat its image's mean saliency
GROUP = 64  # images that share one order of the jitter's four operations
_JITTER = (color.brightness, color.contrast, color.saturation, color.hue)


@cache
def _compiled_jitter() -> tuple[Callable[[Tensor, Tensor], Tensor], ...]:
    return tuple(torch.compile(change, dynamic=True) for change in _JITTER)  # each becomes one pass over the pixels


@dataclass(frozen=True)
class Draws:
    """The random parameters of one view of N images, on the CPU. Rows can be sliced, e.g. by rank."""

    box: Tensor  # N×tries×numbers, see crop.draw_box_numbers; one try unless crops are chosen by saliency
    flip: Tensor  # N bool
    factors: Tensor  # N×4: brightness, contrast, saturation, hue shift
    order: Tensor  # N×4: order of the four, the same for all images of a group
    gray: Tensor  # N bool
    sigma: Tensor  # N: blur width in pixels, 0 = sharp
    solarize: Tensor  # N bool

    def __getitem__(self, rows: slice) -> Draws:
        return Draws(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def _per_view(values: tuple[float, ...], view: int) -> float:
    return values[min(view, len(values) - 1)]


def draw(config: Augment, count: int, view: int, g: torch.Generator) -> Draws:
    """Draw the parameters of the `view`-th view of `count` images."""

    def chosen(p: float) -> Tensor:
        return torch.rand(count, generator=g) < p

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=g)

    tries = SALIENCY_TRIES if config.saliency else 1
    box = crop.draw_box_numbers(count * tries, config.scale, config.ratio, g).view(count, tries, -1)
    flip = chosen(config.flip)
    strengths = (config.brightness, config.contrast, config.saturation)
    factors = torch.stack([uniform(max(0.0, 1 - s), 1 + s) for s in strengths] + [uniform(-config.hue, config.hue)], 1)
    neutral = torch.tensor([1.0, 1.0, 1.0, 0.0])
    factors = torch.where(chosen(config.jitter)[:, None], factors, neutral)
    groups = -(-count // GROUP)
    order = torch.rand(groups, 4, generator=g).argsort(1).repeat_interleave(GROUP, 0)[:count]
    gray = chosen(config.gray)
    sigma = uniform(*config.blur_sigma) * chosen(_per_view(config.blur, view))
    return Draws(box, flip, factors, order, gray, sigma, chosen(_per_view(config.solarize, view)))


def cut(config: Augment, images: Tensor, box: Tensor, draws: Draws, size: int) -> Tensor:
    """Crop boxes (N×4, on the CPU) from uint8 images N×3×H×W and flip: float N×3×size×size in [0, 1]."""
    flip = draws.flip.to(images.device, non_blocking=True)
    x = crop.crop_resize(images, box.to(images.device, non_blocking=True), size, flip, config.filter).mul_(1 / 255)
    return x.clamp_(0, 1) if config.filter == "bicubic" else x  # cubic filters overshoot


def flip(images: Tensor, draws: Draws) -> Tensor:
    """What is left to do with crops that workers cut: uint8 N×3×S×S → float in [0, 1]."""
    flip = draws.flip.to(images.device, non_blocking=True).view(-1, 1, 1, 1)
    return torch.where(flip, images.flip(-1), images).float().mul_(1 / 255)


def recolor(config: Augment, x: Tensor, draws: Draws, compiled: bool = False) -> Tensor:
    """Everything after the crop, in batches on the device: jitter, gray, blur, solarize, normalize. May change x."""
    device, size = x.device, x.shape[-1]
    if config.jitter > 0:
        x = _jitter(config, x, draws, _compiled_jitter() if compiled else _JITTER)
    if len(rows := _rows(draws.gray, device)):
        x = color.grayscale_(x, rows)
    if len(rows := _rows(draws.sigma, device)):
        sigma = draws.sigma[draws.sigma > 0].to(device, non_blocking=True)
        kernel = config.blur_kernel or max(3, size // 20 * 2 + 1)
        x = x.index_copy_(0, rows, blur.gaussian_blur(x.index_select(0, rows), sigma, kernel))
    if len(rows := _rows(draws.solarize, device)):
        x = color.solarize_(x, rows, config.solarize_threshold)
    return color.normalize(x, config.mean, config.std)


def _rows(chosen: Tensor, device: torch.device) -> Tensor:
    """Numbers of the chosen images; found on the CPU, so that a GPU is not waited for."""
    return chosen.nonzero().squeeze(1).to(device, non_blocking=True)


def _jitter(config: Augment, x: Tensor, draws: Draws, changes: Sequence[Callable[[Tensor, Tensor], Tensor]]) -> Tensor:
    strengths = (config.brightness, config.contrast, config.saturation, config.hue)
    factors = draws.factors.to(x.device, non_blocking=True)
    out = []
    # Neighbors with one order go together; a process's share of a batch may begin in the middle of a group.
    starts = [0, *((draws.order[1:] != draws.order[:-1]).any(1).nonzero().squeeze(1) + 1).tolist(), len(x)]
    for start, stop in itertools.pairwise(starts):
        part, factor = x[start:stop], factors[start:stop]
        for k in draws.order[start].tolist():
            if strengths[k] > 0:
                part = changes[k](part, factor[:, k])
        out.append(part)
    return torch.cat(out)
