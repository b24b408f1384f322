"""Random views: `crop_and_flip`, then changes of pixels in place: jitter, gray, blur, solarize … (`photometric`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from effssl.augment import color, crop
from effssl.augment.changes import all_changes
from effssl.augment.options import Augment

SALIENCY_TRIES = 10  # boxes drawn per view where a crop must beat its image's mean saliency
JITTER_GROUP = 128  # images that share one order of the jitter's four operations
IN_CACHE = 1 << 20  # pixel values that stay in a CPU's cache while one operation follows another
STRENGTHS = 4  # uniform numbers per view for the strengths of the jitter
_JITTER = (color.brightness_, color.contrast_, color.saturation_, color.hue_)


@cache
def _compiled_jitter() -> tuple[Callable[[Tensor, Tensor], Tensor], ...]:
    return tuple(torch.compile(operation, dynamic=True) for operation in _JITTER)  # fewer passes over the pixels


@dataclass(frozen=True)
class ViewParameters:
    """The random parameters of N views, on the CPU; the views of an image are neighbors."""

    box: Tensor  # N×tries×numbers, see crop.box_parameters; one try unless crops are chosen by saliency
    flip: Tensor  # N bool
    factors: Tensor  # N×4: brightness, contrast, saturation, hue shift
    order: Tensor  # N×4: order of the four, the same for all views of the images of a jitter group
    gray: Tensor  # N bool
    changes: Tensor  # N×K: amounts of the K changes of `effssl.augment.changes`, 0 where a view is left as it is
    by_channel: Tensor  # N×2×C: brightness and contrast of each channel; C is 0 where the jitter is one of color
    kept: Tensor  # N×C: 1, or 0 for a channel that is dropped; C is 0 without channel dropout

    def split(self, size: int) -> list[ViewParameters]:
        """The same parameters in parts of `size` views."""
        return [ViewParameters(*part) for part in zip(*(x.split(size) for x in vars(self).values()), strict=True)]


def draw_parameters(
    config: Augment, batch: int, views: int, generators: Sequence[torch.Generator], rows: slice = slice(None)
) -> ViewParameters:
    """Draw the parameters of `views` views of a batch of images per generator, and keep those of `rows` of the batch.

    The parameters of a view do not depend on how many views follow, those of an image not on which rows are kept, those
    of a generator not on the others. Many generators at once take hardly longer than one.
    """
    tries = SALIENCY_TRIES if config.saliency else 1
    changes = all_changes()
    chances = 3 + len(changes)  # flip, jitter, gray
    amounts = chances + STRENGTHS + len(changes)
    numbers = amounts + tries * crop.NUMBERS
    groups, size = -(-batch // JITTER_GROUP), (views, batch, numbers)
    drawn = [
        (torch.rand(groups, 4, generator=g), torch.rand(size, generator=g, dtype=torch.float64)) for g in generators
    ]
    order = torch.stack([keys for keys, _ in drawn]).argsort(2).repeat_interleave(JITTER_GROUP, 1)[:, :batch][:, rows]
    u = torch.stack([u[:, rows] for _, u in drawn]).transpose(1, 2).reshape(-1, numbers)  # (steps·rows·views)×numbers
    applied = u[:, :chances].view(-1, views, chances) < u.new_tensor(_probabilities(config, views))
    flip, jitter, gray, *changed = applied.view(-1, chances).unbind(1)
    strengths, strength_of_changes = u[:, chances:amounts].float().split([STRENGTHS, len(changes)], 1)
    least, most = _strength_ranges(config)
    factors = torch.where(jitter[:, None], torch.lerp(least, most, strengths), torch.tensor([1.0, 1.0, 1.0, 0.0]))
    drawn_changes = zip(changes, strength_of_changes.unbind(1), changed, strict=True)
    changed_by = [change.amount(config, uniform) * chosen for change, uniform, chosen in drawn_changes]
    box = crop.box_parameters(u[:, amounts:].reshape(len(u), tries, -1), config.scale, config.ratio)
    order = order.reshape(-1, 4).repeat_interleave(views, 0)
    # Drawn last, so that crops and changes are those of images with other channels.
    by_channel = _uniform(2 * len(config.mean) if config.by_channel else 0, size, generators, rows)
    kept = _uniform(len(config.mean) if config.channel_dropout > 0 else 0, size, generators, rows)
    return ViewParameters(
        box, flip, factors, order, gray, torch.stack(changed_by, 1),
        _channel_factors(config, by_channel, jitter), _kept(config, kept),
    )  # fmt: skip


def _uniform(numbers: int, size: Sequence[int], generators: Sequence[torch.Generator], rows: slice) -> Tensor:
    """Uniform numbers of the views that are kept of some batches, (steps·rows·views)×numbers."""
    if not numbers:
        return torch.empty(len(generators) * len(range(size[1])[rows]) * size[0], 0)
    drawn = [torch.rand((*size[:2], numbers), generator=g)[:, rows] for g in generators]
    return torch.stack(drawn).transpose(1, 2).reshape(-1, numbers)


def _channel_factors(config: Augment, u: Tensor, jitter: Tensor) -> Tensor:
    """Brightness and contrast of each channel from uniform numbers N×2C, N×2×C; 1 where a view is not jittered."""
    least, most = (ends[:2, None] for ends in _strength_ranges(config))
    return torch.where(jitter[:, None, None], torch.lerp(least, most, u.view(len(u), 2, u.shape[1] // 2)), 1.0)


def _kept(config: Augment, u: Tensor) -> Tensor:
    """Which channels are kept, N×C: at least one of each view."""
    kept = u >= config.channel_dropout
    return (kept | (u == u.amax(1, keepdim=True)) if u.shape[1] else kept).float()


def _probabilities(config: Augment, views: int) -> list[tuple[float, ...]]:
    """Probability of each operation, one row per view; those of changes may differ between views."""

    def of_view(values: tuple[float, ...], view: int) -> float:
        return values[min(view, len(values) - 1)]

    changes = [change.probability(config) for change in all_changes()]
    usual = (config.flip, config.jitter, config.gray)
    return [(*usual, *(of_view(values, view) for values in changes)) for view in range(views)]


def _strength_ranges(config: Augment) -> Tensor:
    """Smallest and largest strength of the jitter, 2×STRENGTHS."""
    strengths = (config.brightness, config.contrast, config.saturation)
    least = [*(max(0.0, 1 - s) for s in strengths), -config.hue]
    return torch.tensor([least, [*(1 + s for s in strengths), config.hue]])


def crop_and_flip(
    images: Tensor, boxes: Tensor, flips: Tensor, side: int, filter: str = "bilinear", factor: float = 1 / 255
) -> Tensor:
    """Crop V boxes per image (NV×4, on the CPU) from images N×C×H×W, resize and flip: float, `factor` times as bright.

    The views of an image are stacked along the height, N×C×(V·side)×side, so that all that follows is one operation.
    """
    if images.shape[-2:] == (side, side) and len(boxes) == len(images) and _whole(boxes, side):
        return flip_crops(images[:, None], flips, factor)  # nothing to resample
    boxes, flips = (parameter.to(images.device, non_blocking=True) for parameter in (boxes, flips))
    x = crop.crop_resize(images, boxes, side, flips, filter, factor)
    # Cubic filters overshoot; floats have no bounds.
    return x.clamp_(0, 1) if filter == "bicubic" and not images.is_floating_point() else x


def _whole(boxes: Tensor, side: int) -> bool:
    return bool((boxes == torch.tensor([0, 0, side, side])).all())


def flip_crops(crops: Tensor, flips: Tensor, factor: float = 1 / 255) -> Tensor:
    """Flip crops that are cut and resized already: N×V×C×S×S → float, `factor` times as bright, N×C×(V·S)×S."""
    crops = crops.float() if crops.dtype == torch.uint16 else crops  # for which torch has few operations
    chosen = flips.to(crops.device, non_blocking=True).view(*crops.shape[:2], 1, 1, 1)
    x = torch.where(chosen, crops.flip(-1), crops).transpose(1, 2).flatten(2, 3)
    x = x.to(torch.float32, memory_format=torch.contiguous_format)  # crops of workers may be channels-last
    return x.mul_(factor)


def photometric(config: Augment, x: Tensor, parameters: ViewParameters, compiled: bool = False) -> Tensor:
    """Everything after the crop, batched and in place: jitter, gray, changes of some views, normalize.

    x: N×C×(V·S)×S, the V views of an image stacked along the height; parameters: those of NV views.
    """
    views = len(parameters.flip) // len(x)
    if config.by_channel and config.jitter > 0:
        _jitter_channels_(x.view(len(x), x.shape[1], views, -1), parameters)
    elif not config.by_channel and (config.jitter > 0 or config.gray > 0):
        _jitter_(config, x.view(len(x), 3, views, -1), parameters, _compiled_jitter() if compiled else _JITTER)
    for change, amount in zip(all_changes(), parameters.changes.unbind(1), strict=True):
        if max(change.probability(config)) > 0:
            _change_some_(x, amount, partial(change.apply, config))
    x = color.normalize_(x, config.mean, config.std)
    if config.channel_dropout > 0:
        x.view(len(x), x.shape[1], views, -1).mul_(_of_channels(parameters.kept, x, views))
    return x


def _jitter_(
    config: Augment, x: Tensor, parameters: ViewParameters, operations: Sequence[Callable[[Tensor, Tensor], Tensor]]
) -> None:
    """Jitter and gray of N×3×V×P, a few images at a time that share an order of the operations."""
    strengths = (config.brightness, config.contrast, config.saturation, config.hue)
    amounts = torch.cat([parameters.factors, parameters.gray[:, None]], 1).to(x.device, non_blocking=True)  # NV×5
    *factors, gray = amounts.view(len(x), 1, -1, 1, 5).unbind(4)  # each N×1×V×1
    few = max(1, IN_CACHE // x[0].numel()) if x.device.type == "cpu" else len(x)
    orders = parameters.order[:: x.shape[2]] if config.jitter > 0 else parameters.order[: len(x), :0]
    stop = 0
    for order, neighbors in itertools.groupby(orders.tolist()):
        start, stop = stop, stop + sum(1 for _ in neighbors)
        for first in range(start, stop, few):
            some = slice(first, min(stop, first + few))
            for k in order:
                if strengths[k] > 0:
                    operations[k](x[some], factors[k][some])
            if config.gray > 0:
                color.grayscale_(x[some], gray[some])


def _jitter_channels_(x: Tensor, parameters: ViewParameters) -> None:
    """Jitter of N×C×V×P where no channels are red, green and blue."""
    brightness, contrast = (_of_channels(part, x, x.shape[2]) for part in parameters.by_channel.unbind(1))
    few = max(1, IN_CACHE // x[0].numel()) if x.device.type == "cpu" else len(x)
    for some, b, c in zip(x.split(few), brightness.split(few), contrast.split(few), strict=True):
        color.brightness_contrast_(some, b, c)


def _of_channels(values: Tensor, x: Tensor, views: int) -> Tensor:
    """Values of each channel of NV views, NV×C, as N×C×V×1 on the device of the images."""
    return values.to(x.device, x.dtype, non_blocking=True).view(len(x), views, -1, 1).transpose(1, 2)


def _change_some_(x: Tensor, amount: Tensor, change: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Change those of the views N×C×(V·S)×S whose amount is not 0, in one call on M×C×S×S.

    Amounts, NV, are on the CPU, so that the CPU does not wait for a GPU; whole channels are gathered and put back.
    """
    views, count, side = len(amount) // len(x), x.shape[1], x.shape[-1]
    image, view = amount.view(-1, views).nonzero().unbind(1)
    if len(image):
        channels = (count * image[:, None] + torch.arange(count)) * views + view[:, None]  # M×C
        rows, planes = channels.flatten().to(x.device, non_blocking=True), x.view(-1, side, side)
        some = planes.index_select(0, rows).view(-1, count, side, side)
        changed = change(some, amount[amount != 0].to(x.device, non_blocking=True))
        planes.index_copy_(0, rows, changed.view(-1, side, side))
