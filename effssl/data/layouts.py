"""Arrays of pixels as people store them: where their channels are, and which of three types holds their values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from effssl.augment.pixel_format import LIMITS, MOST_CHANNELS, PixelFormat
from effssl.runtime.errors import RequestError

SMALLEST = 2  # pixels of a side
USUAL = (1, 3, 4)  # numbers of channels that decide where two axes could be the channels


def channel_axis(shape: Sequence[int], stacked: bool) -> int | None:
    """The axis of the channels, of an image or of a stack of images: the last or the first of three; None if neither.

    >>> channel_axis((10, 64, 64, 3), True), channel_axis((10, 12, 64, 64), True), channel_axis((64, 64, 64), False)
    (3, 1, None)
    """
    first = 1 if stacked else 0
    if len(shape) != first + 3:
        return None
    found = [axis for axis in (first + 2, first) if 1 <= shape[axis] <= MOST_CHANNELS]
    usual = [axis for axis in found if shape[axis] in USUAL]
    if len(found) < 2 or usual:
        return next(iter(usual or found), None)
    height, width = shape[first] == shape[first + 1], shape[first + 1] == shape[first + 2]
    if height != width:  # of 12×16×16 or 16×16×12, the image is square
        return first + 2 if height else first
    return min(found, key=lambda axis: shape[axis])


def stack_axis(shape: Sequence[int], where: str) -> int | None:
    """The axis of the channels of a stack of images; None where they have none."""
    axis = channel_axis(shape, stacked=True)
    if axis is None and len(shape) != 3:
        raise RequestError(
            f"{where}: images of shape {tuple(shape)}; expected N×H×W, N×H×W×C or N×C×H×W with C from 1 to "
            f"{MOST_CHANNELS}"
        )
    return axis


def check_size(count: int, size: Sequence[int], where: str) -> None:
    """Refuse a stack without images, or whose height and width are too small."""
    if not count:
        raise RequestError(f"{where} holds no images")
    if min(size) < SMALLEST:
        raise RequestError(
            f"{where}: images of {size[0]}×{size[1]} pixels show nothing; they need at least {SMALLEST}×{SMALLEST}"
        )


def stack_of(array: np.ndarray, where: str) -> np.ndarray:
    """Images N×C×H×W of uint8, uint16 or float32.

    Gray ones of 8 bits become RGB; an alpha channel that hides nothing is left out.
    """
    axis = stack_axis(array.shape, where)
    stack = _smallest_type(array[:, None] if axis is None else np.moveaxis(array, axis, 1), where)
    if stack.dtype == np.uint8 and stack.shape[1] == 1:
        return np.repeat(stack, 3, 1)
    if stack.shape[1] == 4 and stack.size and (stack[:, 3] == LIMITS[stack.dtype.name][1]).all():
        return stack[:, :3]
    return stack


def format_of(stack: np.ndarray, axis: int, where: str) -> PixelFormat:
    """The format of pixels whose channels are one axis; floats have the range of their values."""
    limits = LIMITS[stack.dtype.name]
    if stack.dtype == np.float32 and stack.size:
        limits = float_range(float(stack.min()), float(stack.max()), where)
    return PixelFormat(stack.shape[axis], stack.dtype.name, limits)  # type: ignore[arg-type]


def float_range(low: float, high: float, where: str) -> tuple[float, float]:
    """The values of floats that become 0 and 1: these where all are between them, else the smallest and the largest.

    >>> float_range(0.1, 0.9, "a.npy"), float_range(-20.0, 700.0, "a.npy")
    ((0.0, 1.0), (-20.0, 700.0))
    """
    if not (np.isfinite(low) and np.isfinite(high)):
        raise RequestError(f"{where} has values that are not finite; replace them")
    if 0 <= low <= high <= 1:
        return LIMITS["float32"]
    return (low, high) if high > low else (low, low + 1)


def depth_of(kind: np.dtype) -> str:
    """Which of the three types holds the values of another one; "" if none does.

    >>> [depth_of(np.dtype(kind)) for kind in ("uint8", "uint16", "int16", "float64", "complex64")]
    ['uint8', 'uint16', 'float32', 'float32', '']
    """
    if kind.name in LIMITS:
        return kind.name
    return "float32" if kind.kind in "iuf" else ""


def _smallest_type(array: np.ndarray, where: str) -> np.ndarray:
    depth = depth_of(array.dtype)
    if not depth:
        raise RequestError(f"{where}: images of type {array.dtype}; expected whole numbers or floats")
    if array.dtype.kind in "iu" and array.size and array.min() >= 0:  # whole numbers whatever type they were saved as
        high = array.max()
        depth = next(
            (name for name in ("uint8", "uint16") if array.dtype.name != "uint16" and high <= LIMITS[name][1]), depth
        )
    with np.errstate(over="ignore"):  # what float32 does not hold is refused as infinite
        return array.astype(depth, copy=False)
