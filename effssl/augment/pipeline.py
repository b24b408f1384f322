"""Random views: crop and flip (`cut`), then jitter, gray, blur, solarize, normalize (`recolor`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from effssl.augment import blur, color, crop
from effssl.config import Augment

SALIENCY_TRIES = 10  # boxes drawn per view where a crop must beat its image's mean saliency
GROUP = 128  # images that share one order of the jitter's four operations
IN_CACHE = 1 << 20  # numbers that a CPU changes many times in turn without fetching them from memory each time
CHANCES, AMOUNTS = 5, 5  # uniform numbers per view beside those of its boxes: is it done at all, and how strongly
_JITTER = (color.brightness_, color.contrast_, color.saturation_, color.hue_)


@cache
def _compiled_jitter() -> tuple[Callable[[Tensor, Tensor], Tensor], ...]:
    return tuple(torch.compile(change, dynamic=True) for change in _JITTER)  # fewer passes over the pixels


@dataclass(frozen=True)
class Draws:
    """The random parameters of N views, on the CPU; the views of an image stand together."""

    box: Tensor  # N×tries×numbers, see crop.box_numbers; one try unless crops are chosen by saliency
    flip: Tensor  # N bool
    factors: Tensor  # N×4: brightness, contrast, saturation, hue shift
    order: Tensor  # N×4: order of the four, the same for all views of the images of a group
    gray: Tensor  # N bool
    sigma: Tensor  # N: blur width in pixels, 0 = sharp
    solarize: Tensor  # N bool

    def split(self, size: int) -> list[Draws]:
        """The same parameters, so many views at a time."""
        return [Draws(*part) for part in zip(*(x.split(size) for x in vars(self).values()), strict=True)]


def _per_view(values: tuple[float, ...], view: int) -> float:
    return values[min(view, len(values) - 1)]


def draw(
    config: Augment, count: int, views: int, generators: Sequence[torch.Generator], rows: slice = slice(None)
) -> Draws:
    """Draw the parameters of some views of `count` images per generator; of those, `rows` are kept.

    The numbers of a view do not depend on how many follow it, nor those of an image on which rows are kept, nor those
    of a generator on the others. Many generators at once take hardly longer than one.
    """
    tries = SALIENCY_TRIES if config.saliency else 1
    numbers = CHANCES + AMOUNTS + tries * crop.NUMBERS
    groups, size = -(-count // GROUP), (views, count, numbers)
    drawn = [
        (torch.rand(groups, 4, generator=g), torch.rand(size, generator=g, dtype=torch.float64)) for g in generators
    ]
    order = torch.stack([keys for keys, _ in drawn]).argsort(2).repeat_interleave(GROUP, 1)[:, :count][:, rows]
    u = torch.stack([u[:, rows] for _, u in drawn]).transpose(1, 2).reshape(-1, numbers)  # (steps·rows·views)×numbers
    chances = [
        (config.flip, config.jitter, config.gray, _per_view(config.blur, v), _per_view(config.solarize, v))
        for v in range(views)
    ]
    does = u[:, :CHANCES].view(-1, views, CHANCES) < u.new_tensor(chances)
    flip, jitter, gray, blurred, solarize = does.view(-1, CHANCES).unbind(1)
    strengths = (config.brightness, config.contrast, config.saturation)
    least, most = torch.tensor(
        [
            [*(max(0.0, 1 - s) for s in strengths), -config.hue, config.blur_sigma[0]],
            [*(1 + s for s in strengths), config.hue, config.blur_sigma[1]],
        ]
    )
    amounts = torch.lerp(least, most, u[:, CHANCES : CHANCES + AMOUNTS].float())
    factors = torch.where(jitter[:, None], amounts[:, :4], torch.tensor([1.0, 1.0, 1.0, 0.0]))
    box = crop.box_numbers(u[:, CHANCES + AMOUNTS :].reshape(len(u), tries, -1), config.scale, config.ratio)
    order = order.reshape(-1, 4).repeat_interleave(views, 0)
    return Draws(box, flip, factors, order, gray, amounts[:, 4] * blurred, solarize)


def cut(config: Augment, images: Tensor, box: Tensor, flip: Tensor, size: int) -> Tensor:
    """Crop V boxes per image (NV×4, on the CPU) from uint8 images N×3×H×W and flip: float in [0, 1].

    The views of an image stand one below the other, N×3×(V·size)×size: what follows goes over all of them at once.
    """
    box, flip = (parameter.to(images.device, non_blocking=True) for parameter in (box, flip))
    x = crop.crop_resize(images, box, size, flip, config.filter, 1 / 255)
    return x.clamp_(0, 1) if config.filter == "bicubic" else x  # cubic filters overshoot


def flip(images: Tensor, chosen: Tensor) -> Tensor:
    """What is left to do with crops that workers cut: uint8 N×V×3×S×S → float in [0, 1], N×3×(V·S)×S."""
    chosen = chosen.to(images.device, non_blocking=True).view(*images.shape[:2], 1, 1, 1)
    x = torch.where(chosen, images.flip(-1), images).transpose(1, 2).flatten(2, 3)
    x = x.to(torch.float32, memory_format=torch.contiguous_format)  # what workers cut may be channels-last
    return x.mul_(1 / 255)


def recolor(config: Augment, x: Tensor, draws: Draws, compiled: bool = False) -> Tensor:
    """Everything after the crop, in batches on the device and in place: jitter, gray, blur, solarize, normalize.

    V views per image stand one below the other: x is N×3×(V·S)×S, and NV parameters have been drawn.
    """
    views = len(draws.flip) // len(x)
    if config.jitter > 0 or config.gray > 0:
        _jitter_(config, x.view(len(x), 3, views, -1), draws, _compiled_jitter() if compiled else _JITTER)
    if max(config.blur) > 0:
        kernel = config.blur_kernel or max(3, x.shape[-1] // 20 * 2 + 1)
        sigma = draws.sigma[draws.sigma > 0].to(x.device, non_blocking=True)
        _change_some_(x, draws.sigma, lambda some: blur.gaussian_blur(some, sigma, kernel))
    if max(config.solarize) > 0:
        _change_some_(x, draws.solarize, lambda some: color.solarize(some, config.solarize_threshold))
    return color.normalize_(x, config.mean, config.std)


def _jitter_(config: Augment, x: Tensor, draws: Draws, changes: Sequence[Callable[[Tensor, Tensor], Tensor]]) -> None:
    """Jitter and gray of N×3×V×P, a few images at a time that share an order of the changes."""
    strengths = (config.brightness, config.contrast, config.saturation, config.hue)
    drawn = torch.cat([draws.factors, draws.gray[:, None]], 1).to(x.device, non_blocking=True)  # NV×5
    *factors, gray = drawn.view(len(x), 1, -1, 1, 5).unbind(4)  # each N×1×V×1
    few = max(1, IN_CACHE // x[0].numel()) if x.device.type == "cpu" else len(x)
    orders = draws.order[:: x.shape[2]] if config.jitter > 0 else draws.order[: len(x), :0]
    stop = 0
    for order, neighbors in itertools.groupby(orders.tolist()):
        start, stop = stop, stop + sum(1 for _ in neighbors)
        for first in range(start, stop, few):
            some = slice(first, min(stop, first + few))
            for k in order:
                if strengths[k] > 0:
                    changes[k](x[some], factors[k][some])
            if config.gray > 0:
                color.grayscale_(x[some], gray[some])


def _change_some_(x: Tensor, drawn: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    """Change those of the views N×3×(V·S)×S whose parameter is not 0, all at once as M×3×S×S.

    Parameters, NV, are on the CPU, so that a GPU is not waited for; whole channels are fetched and put back.
    """
    views, side = len(drawn) // len(x), x.shape[-1]
    image, view = drawn.view(-1, views).nonzero().unbind(1)
    if len(image):
        channels = (3 * image[:, None] + torch.arange(3)) * views + view[:, None]  # M×3
        rows, planes = channels.flatten().to(x.device, non_blocking=True), x.view(-1, side, side)
        some = planes.index_select(0, rows).view(-1, 3, side, side)
        planes.index_copy_(0, rows, change(some).view(-1, side, side))
