"""What a type of file is: how it begins, and how its header and its pixels are read."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from effssl.augment.pixel_format import LIMITS, PICTURES, PixelFormat
from effssl.runtime.errors import RequestError, Stopped
from effssl.runtime.reading import check_regular, describe

Source = Path | bytes
"""A file, or its content."""


@dataclass(frozen=True)
class FileAbout:
    """What the header of a file says."""

    height: int  # as displayed
    width: int
    pixels: PixelFormat  # the range of floats is not known from a header
    is_picture: bool = False  # pillow reads it as RGB of 8 bits, too

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.height, self.width


@dataclass(frozen=True)
class FileType:
    """A type of file that pillow does not read, or not with all its values."""

    begins: Callable[[bytes], bool]  # whether a file is of this type, by its first HEAD bytes
    about: Callable[[BinaryIO], FileAbout | None]  # None for one that is a picture
    read: Callable[[BinaryIO], np.ndarray]  # its pixels H×W×C, uint8, uint16 or float32


HEAD = 132  # bytes; the signature of DICOM ends there


def head_of(source: Source) -> bytes:
    """The first bytes of a file."""
    if isinstance(source, bytes):
        return source[:HEAD]
    check_regular(source)
    with source.open("rb") as file:
        return file.read(HEAD)


def about_file(kind: FileType, source: Source) -> FileAbout | None:
    """What the header says; whatever is wrong with it raises OSError."""
    about = _guarded(kind.about, source)
    if about is not None and min(about.height, about.width) < 1:
        raise OSError(f"it has {about.height}×{about.width} pixels")
    return about


def read_file(kind: FileType, source: Source) -> np.ndarray:
    """The pixels H×W×C; whatever is wrong with them raises OSError."""
    pixels = _guarded(kind.read, source)
    if not pixels.size:
        raise OSError("it has no pixels")
    if pixels.dtype == np.float32 and not np.isfinite(pixels).all():
        raise OSError("it has values that are not finite")
    return pixels


def format_for(channels: int, depth: str) -> PixelFormat:
    """Pixels of a type, whose range is that of the type."""
    if (channels, depth) in ((1, "uint8"), (3, "uint8")):
        return PICTURES
    return PixelFormat(channels, depth, LIMITS[depth])  # type: ignore[arg-type]


def over_white(pixels: np.ndarray) -> np.ndarray:
    """Whole numbers H×W×(C+1) whose last channel is alpha, before white: H×W×C."""
    most = LIMITS[pixels.dtype.name][1]
    alpha = pixels[..., -1:] / most
    return (pixels[..., :-1] * alpha + most * (1 - alpha)).round().astype(pixels.dtype)


def _guarded(function: Callable, source: Source):  # type: ignore[no-untyped-def]
    try:
        if isinstance(source, bytes):
            return function(io.BytesIO(source))
        with source.open("rb") as file:
            return function(file)
    except (OSError, Stopped, RequestError):
        raise
    except Exception as error:  # damaged bytes make decoders raise anything: struct.error, KeyError, ValueError …
        raise OSError(describe(error)) from None
