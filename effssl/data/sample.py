"""A fixed sample of the training images, from which filters and statistics are computed before training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from effssl.augment.color import normalize
from effssl.augment.crop import center_boxes
from effssl.augment.options import Augment
from effssl.data.images import Images, Reading, crop_batches
from effssl.runtime.errors import RequestError
from effssl.runtime.randomness import generator

COUNT = 2000  # images; more do not change filters visibly
BATCH = 250
STATISTICS = 500  # images that mean and deviation of the channels are computed from
FLAT = 1e-6  # deviation below which a channel is the same everywhere
_last: tuple[Images, tuple[Any, ...], Tensor] | None = None  # a run builds several trainers, all with one sample


def sampler(images: Images, side: int, augment: Augment, seed: int) -> Callable[[], Tensor]:
    """A function that reads the sample when it is first called: N×C×side×side, center-cropped and normalized."""

    def read() -> Tensor:
        global _last
        asked = (side, augment.filter, augment.pixels, augment.mean, augment.std, seed)
        if _last is None or _last[0] is not images or _last[1] != asked:
            _last = (images, asked, _read(images, side, augment, seed))
        return _last[2]

    return read


def channel_statistics(
    images: Images, side: int, augment: Augment, seed: int
) -> tuple[int, tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel on a sample of images, and how many these are; crops as of `sampler`.

    A channel that is the same everywhere has the deviation 1.
    """
    parts = _crops(images, side, augment, seed, STATISTICS)
    count = sum(map(len, parts))
    if not count:
        raise RequestError("none of the images that the mean of each channel is computed from can be decoded")
    values = count * side**2
    mean = torch.stack([x.double().sum((0, 2, 3)) for x in parts]).sum(0) / values
    squares = [(x.double() - mean.view(-1, 1, 1)).square().sum((0, 2, 3)) for x in parts]
    std = (torch.stack(squares).sum(0) / values).sqrt()
    std = torch.where(std < FLAT, torch.ones_like(std), std)
    rounded = [tuple(float(f"{value:.6g}") for value in values.tolist()) for values in (mean, std)]
    return count, rounded[0], rounded[1]


def _read(images: Images, side: int, augment: Augment, seed: int) -> Tensor:
    parts = _crops(images, side, augment, seed, COUNT)
    if not parts:
        raise RequestError("none of the images that filters are computed from can be decoded")
    return normalize(torch.cat(parts), augment.mean, augment.std)


def _crops(images: Images, side: int, augment: Augment, seed: int, count: int) -> list[Tensor]:
    """Center crops of a fixed random sample, each N×C×side×side in [0, 1]."""
    order = torch.randperm(len(images), generator=generator(seed, "sample"))
    some = images.select(order[:count].sort().values)
    reading = Reading(torch.device("cpu"), augment.filter, pixels=augment.pixels)
    return [pixels for pixels, _ in crop_batches(some, center_boxes(some.sizes, 1.0), side, BATCH, reading)]
