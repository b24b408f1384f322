"""The formats of image files, by their content: what a file holds, and its pixels as an array.

Pictures (8 bits, gray or color) are read by pillow as upright RGB. PNG of 16 bits, TIFF of many channels or other types
of values, DICOM and .npy files keep their channels and their values. All files of a set have one format.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path, PurePath

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from effssl.augment.pixel_format import PICTURES, PixelFormat
from effssl.data.file_types.deep_png import DEEP_PNG
from effssl.data.file_types.dicom import DICOM
from effssl.data.file_types.file_type import FileAbout, FileType, Source, about_file, head_of, read_file
from effssl.data.file_types.npy import NPY
from effssl.data.file_types.tiff import TIFF
from effssl.data.image_files import decode, displayed_size, is_picture
from effssl.data.layouts import float_range
from effssl.runtime.cores import usable_cores
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import progress_bar, say
from effssl.runtime.randomness import generator

SUFFIXES = (
    ".jpg", ".jpeg", ".jfif", ".jpe", ".png", ".webp", ".bmp", ".gif", ".avif", ".heic", ".heif", ".ppm", ".pgm",
    ".tif", ".tiff", ".dcm", ".npy",
)  # fmt: skip
"""Suffixes of image files. Of a file without a suffix, or with a number for one, the content decides."""
TYPES = (DEEP_PNG, TIFF, DICOM, NPY)
LISTED = 3  # formats that a message names
RANGE_SAMPLE = 100  # images that the range of floats is taken from


def may_be_image(path: PurePath) -> bool:
    """Whether a file is one of images by its suffix, or has no suffix that says what it is.

    >>> [may_be_image(PurePath(name)) for name in ("a.TIF", "IM0001", "1.2.840", "notes.txt", ".a.jpg")]
    [True, True, True, False, False]
    """
    suffix = path.suffix.lower()
    return not path.name.startswith(".") and (suffix in SUFFIXES or not suffix or suffix[1:].isdigit())


def is_raw(name: str) -> bool:
    """Whether a file holds its pixels as they are, so that to read it is not to decode it."""
    return name.lower().endswith(".npy")


def has_signature(path: Path) -> bool:
    """Whether a file begins as an image file does."""
    try:
        head = head_of(path)
    except OSError:
        return False
    return is_picture(head) or _type_of(head) is not None


def _type_of(head: bytes) -> FileType | None:
    return next((kind for kind in TYPES if kind.begins(head)), None)


def examine(source: Source) -> FileAbout | None:
    """What the header of an image file says; None if it cannot be read."""
    try:
        return _examine(source)
    except OSError:
        return None


def reason(source: Source) -> str:
    """Why a file cannot be read, after a colon; nothing where its error does not tell."""
    try:
        _examine(source)
    except OSError as error:
        return f": {error}"
    return ""


def _examine(source: Source) -> FileAbout | None:
    kind = _type_of(head_of(source))
    about = about_file(kind, source) if kind is not None else None
    if about is not None:
        return about
    size = displayed_size(source)
    return None if size is None else FileAbout(*size, PICTURES, is_picture=True)


def examine_all(files: list[Path]) -> list[FileAbout | None]:
    """What the header of each file says, None for one that cannot be read."""
    found = []
    pool = ThreadPoolExecutor(usable_cores())
    with pool, progress_bar(f"reading the sizes of {len(files)} images", len(files)) as advance:
        for about in pool.map(examine, files):
            found.append(about)
            advance(1)
    return found


class FormatsFound:
    """The formats of the files of a set, each with its number of files and the first of these."""

    def __init__(self) -> None:
        self.found: dict[tuple[PixelFormat, bool], tuple[int, int]] = {}

    def add(self, row: int, about: FileAbout) -> None:
        """Take note of a file."""
        key = about.pixels, about.is_picture
        count, first = self.found.get(key, (0, row))
        self.found[key] = count + 1, first

    def common(self, name: Callable[[int], object]) -> PixelFormat:
        """The format of all, refused where they differ; `name` gives the name of a file for the message.

        Where some are pictures and the others PNG of 16 bits, all are read as pictures.
        """
        formats = {pixels for pixels, _ in self.found}
        if len(formats) == 1:
            return formats.pop()
        if all(is_picture or pixels.is_picture for pixels, is_picture in self.found):
            count, first = next(at for (pixels, _), at in self.found.items() if not pixels.is_picture)
            say(f"{count} images have 16 bits, e.g. {name(first)}; they are read as 8 bits, as the others have")
            return PICTURES
        most = sorted(self.found.items(), key=lambda item: -item[1][0])[:LISTED]
        parts = [f"{pixels} in {count}, e.g. {name(first)}" for (pixels, _), (count, first) in most]
        raise RequestError(f"images of one set have equal channels and types of values; found {'; '.join(parts)}")


def decode_picture(source: Source, shrink: float = 1.0, least: int = 0) -> Image.Image:
    """An image file as upright RGB of 8 bits, whatever reads it; a JPEG may come out smaller, as of `decode`."""
    try:
        return decode(source, shrink, least)
    except UnidentifiedImageError:
        kind = _type_of(head_of(source))
        if kind is None:
            raise
    array = read_file(kind, source)
    if array.shape[2] != 3 or array.dtype != np.uint8:
        raise OSError(f"it has {array.shape[2]} channels of {array.dtype}, and is no picture")
    return Image.fromarray(array)


def read_pixels(source: Source, pixels: PixelFormat) -> np.ndarray:
    """The pixels of an image file, H×W×C, in the format of its set."""
    if pixels.is_picture:
        return np.asarray(decode_picture(source))
    kind = _type_of(head_of(source))
    if kind is None:
        raise OSError(f"it is a picture, and the others have {pixels}")
    array = read_file(kind, source)
    found = (array.shape[2], array.dtype.name)
    if found != (pixels.channels, pixels.depth):
        raise OSError(f"it has {found[0]} channels of {found[1]}, and the others {pixels}")
    return array


def measured_range(pixels: PixelFormat, count: int, read: Callable[[int], np.ndarray]) -> PixelFormat:
    """The format of a set of `count` images with the range of its floats, from a sample; `read` gives one image."""
    if pixels.depth != "float32":
        return pixels
    ends: list[float] = []
    last = ""
    for row in torch.randperm(count, generator=generator(0, "range"))[:RANGE_SAMPLE].tolist():
        try:
            array = read(row)
        except OSError as error:
            last = f": {error}"
        else:
            ends += [float(array.min()), float(array.max())]
    if not ends:
        raise RequestError(f"none of the images that the range of values is taken from can be read{last}")
    return replace(pixels, range=float_range(min(ends), max(ends), "a sample"))
