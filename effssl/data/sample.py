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
_last: tuple[Images, tuple[Any, ...], Tensor] | None = None  # a run builds several trainers, all with one sample


def sampler(images: Images, side: int, augment: Augment, seed: int) -> Callable[[], Tensor]:
    """A function that reads the sample when it is first called: N×3×side×side, center-cropped and normalized."""

    def read() -> Tensor:
        global _last
        asked = (side, augment.filter, augment.mean, augment.std, seed)
        if _last is None or _last[0] is not images or _last[1] != asked:
            _last = (images, asked, _read(images, side, augment, seed))
        return _last[2]

    return read


def _read(images: Images, side: int, augment: Augment, seed: int) -> Tensor:
    order = torch.randperm(len(images), generator=generator(seed, "sample"))
    some = images.select(order[:COUNT].sort().values)
    reading = Reading(torch.device("cpu"), augment.filter)
    parts = [pixels for pixels, _ in crop_batches(some, center_boxes(some.sizes, 1.0), side, BATCH, reading)]
    if not parts:
        raise RequestError("none of the images that filters are computed from can be decoded")
    return normalize(torch.cat(parts), augment.mean, augment.std)
