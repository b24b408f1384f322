"""TIFF files: any type of value, channels as samples or as pages, stripes or tiles. Those of 8 bits may be pictures."""

from __future__ import annotations

import logging
from math import prod
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np

from effssl.augment.pixel_format import MOST_CHANNELS
from effssl.data.file_types.file_type import FileAbout, FileType, format_for, over_white
from effssl.data.layouts import depth_of
from effssl.runtime.errors import RequestError

SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
ALPHA = (1, 2)  # kinds of an extra sample


def _tifffile() -> ModuleType:
    try:
        import tifffile
    except ImportError:
        raise RequestError("TIFF files need the package tifffile: pip install 'effssl[tiff]'") from None
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # what is wrong with a file is said by its error
    return tifffile


def _about(file: BinaryIO) -> FileAbout | None:
    with _tifffile().TiffFile(file) as tiff:
        series = tiff.series[0]
        page = series.keyframe
        channels, alpha = _channels(series), _has_alpha(page)
        shown = channels - alpha in (1, 3) or page.photometric.name == "SEPARATED"
        if series.dtype.name in ("uint8", "bool") and len(series.pages) == 1 and shown:
            return None
        depth = depth_of(series.dtype)
        if not depth:
            raise OSError(f"its values are of type {series.dtype}")
        if page.photometric.name == "PALETTE":
            raise OSError("its colors are a palette of more than 8 bits or of several pages")
        return FileAbout(page.imagelength, page.imagewidth, format_for(channels - alpha, depth))


def _channels(series: Any) -> int:
    """Samples of a pixel times pages; all that is neither height nor width."""
    if "Y" not in series.axes or "X" not in series.axes:
        raise OSError(f"its axes are {series.axes}, without height and width")
    channels = prod(n for axis, n in zip(series.axes, series.shape, strict=True) if axis not in "YX")
    if channels > MOST_CHANNELS:
        raise OSError(f"it has {channels} channels or pages; images have up to {MOST_CHANNELS}")
    return channels


def _has_alpha(page: Any) -> bool:
    return bool(page.extrasamples) and int(page.extrasamples[-1]) in ALPHA


def _read(file: BinaryIO) -> np.ndarray:
    with _tifffile().TiffFile(file) as tiff:
        series = tiff.series[0]
        channels, axes = _channels(series), series.axes
        order = [*(i for i, axis in enumerate(axes) if axis not in "YX"), axes.index("Y"), axes.index("X")]
        pages = series.asarray().transpose(order)
        pixels = np.moveaxis(pages.reshape(channels, *pages.shape[-2:]), 0, 2)
        with np.errstate(over="ignore"):  # infinite values are refused
            pixels = np.ascontiguousarray(pixels.astype(depth_of(pixels.dtype), copy=False))
        if not _has_alpha(series.keyframe):
            return pixels
        return over_white(pixels) if pixels.dtype != np.float32 else pixels[..., :-1]


TIFF = FileType(lambda head: head.startswith(SIGNATURES), _about, _read)
