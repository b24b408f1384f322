"""NumPy files of one image: H×W, H×W×C or C×H×W."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np

from effssl.augment.pixel_format import MOST_CHANNELS
from effssl.data.file_types.file_type import FileAbout, FileType, format_for
from effssl.data.layouts import channel_axis, depth_of

SIGNATURE = b"\x93NUMPY"


def _axis(shape: tuple[int, ...]) -> int | None:
    axis = channel_axis(shape, stacked=False)
    if axis is None and len(shape) != 2:
        raise OSError(f"its shape is {shape}; an image is H×W, H×W×C or C×H×W with C from 1 to {MOST_CHANNELS}")
    return axis


def _about(file: BinaryIO) -> FileAbout:
    major, _ = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    shape, _, kind = read(file)
    axis, depth = _axis(shape), depth_of(kind)
    if not depth:
        raise OSError(f"its values are of type {kind}")
    height, width = (n for i, n in enumerate(shape) if i != axis)
    return FileAbout(height, width, format_for(1 if axis is None else shape[axis], depth))


def _read(file: BinaryIO) -> np.ndarray:
    array = np.load(file, allow_pickle=False)
    axis = _axis(array.shape)
    pixels = array[..., None] if axis is None else np.moveaxis(array, axis, 2)
    with np.errstate(over="ignore"):  # infinite values are refused
        pixels = pixels.astype(depth_of(array.dtype), copy=False)
    return np.repeat(pixels, 3, 2) if pixels.dtype == np.uint8 and pixels.shape[2] == 1 else pixels


NPY = FileType(lambda head: head.startswith(SIGNATURE), _about, _read)
