"""Float images whose values lie far from those of the others: one of them alone would decide the range of the set."""

from __future__ import annotations

import numpy as np
import torch

from effssl.data.formats import RANGE_SAMPLE
from effssl.data.images import Images
from effssl.runtime.errors import RequestError
from effssl.runtime.randomness import generator

FAR = 100  # times the spread of the others; pixels of 8 bits among floats from 0 to 1 are 255 times
USUAL = (0.01, 0.99)  # quantiles of an image that hot pixels do not change
RARE = 10  # where more than one in so many images have such values, they are no mistake
VALUES = 1 << 16  # of an image, evenly spaced, that the quantiles are taken from


def refuse_far_values(images: Images) -> None:
    """Refuse float images of which few have values far from those of the others.

    Far are values beyond the quantiles of the others by more than 100 times the difference of these.
    """
    measured = images.pixel_format
    if measured.depth != "float32":
        return
    rows = torch.randperm(len(images), generator=generator(0, "range"))[:RANGE_SAMPLE].tolist()
    found = {row: some for row in rows if (some := _values(images, row)) is not None}
    rare = max(1, len(found) // RARE)
    if len(found) < 3:
        return
    # Without the most extreme ones, so that those which are far do not hide themselves.
    low = sorted(usual_low for _, usual_low, _, _ in found.values())[rare]
    high = sorted(usual_high for _, _, usual_high, _ in found.values())[-1 - rare]
    least, most = low - FAR * (high - low), high + FAR * (high - low)
    if low >= high or least <= measured.range[0] < measured.range[1] <= most:
        return
    far = [row for row, (smallest, _, _, largest) in found.items() if smallest < least or largest > most]
    if len(far) > rare:
        return
    row = far[0] if far else _first_far(images, least, most)
    todo = "give the values that become 0 and 1 by --augment.pixels.range"
    name, remove = "an image", ""
    if row is not None:
        name, remove = str(images.paths[row]) if images.paths else f"image {row} (the first is 0)", "remove it, or "
    smallest, largest = measured.range if row is None else _ends(images.array(row))
    raise RequestError(
        f"{name} has values from {smallest:g} to {largest:g}, and nearly all of the others are between {low:g} and "
        f"{high:g}; {remove}{todo}"
    )


def _values(images: Images, row: int) -> tuple[float, float, float, float] | None:
    """Smallest value, two quantiles and largest value of an image; None if it cannot be read."""
    try:
        array = images.array(row)
    except OSError:
        return None
    smallest, largest = _ends(array)
    some = array.reshape(-1)[:: max(1, array.size // VALUES)]
    low, high = np.quantile(some, USUAL).tolist()
    return smallest, low, high, largest


def _ends(array: np.ndarray) -> tuple[float, float]:
    return float(array.min()), float(array.max())


def _first_far(images: Images, least: float, most: float) -> int | None:
    """The first image of an array with values below or above; to look for it among files would take too long."""
    if not images.in_memory:
        return None
    ends = ((row, _ends(images.array(row))) for row in range(len(images)))
    return next((row for row, (smallest, largest) in ends if smallest < least or largest > most), None)
