"""DICOM files: values in the file's window become 16 bits; color of 8 bits is a picture. Frames are channels."""

from __future__ import annotations

from types import ModuleType
from typing import Any, BinaryIO

import numpy as np

from effssl.augment.pixel_format import LIMITS, MOST_CHANNELS
from effssl.data.file_types.file_type import FileAbout, FileType, format_for
from effssl.runtime.errors import RequestError

WHITE = LIMITS["uint16"][1]


def _pydicom() -> ModuleType:
    try:
        import pydicom
    except ImportError:
        raise RequestError("DICOM files need the package pydicom: pip install 'effssl[dicom]'") from None
    return pydicom


def _open(file: BinaryIO) -> Any:
    found = _pydicom().dcmread(file)
    if "PixelData" not in found or "Rows" not in found:
        raise OSError("it is a DICOM file without pixels")
    return found


def _about(file: BinaryIO) -> FileAbout:
    found = _open(file)
    channels = _channels(found)
    return FileAbout(found.Rows, found.Columns, format_for(channels, "uint8" if _is_color(found) else "uint16"))


def _is_color(found: Any) -> bool:
    return found.SamplesPerPixel == 3 and found.BitsAllocated == 8


def _channels(found: Any) -> int:
    frames = int(found.get("NumberOfFrames") or 1)
    if _is_color(found) and frames == 1:
        return 3
    if found.SamplesPerPixel != 1 or frames > MOST_CHANNELS:
        raise OSError(f"it has {frames} frames of {found.SamplesPerPixel} samples; images have up to {MOST_CHANNELS}")
    return frames


def _read(file: BinaryIO) -> np.ndarray:
    found = _open(file)
    channels = _channels(found)
    if _is_color(found):
        return np.ascontiguousarray(found.pixel_array)
    from pydicom.pixels import apply_modality_lut

    values = np.asarray(apply_modality_lut(found.pixel_array, found), np.float64)
    low, high = _window(found)
    shares = ((values - low) / (high - low)).clip(0, 1)
    if found.PhotometricInterpretation == "MONOCHROME1":  # small values are bright
        shares = 1 - shares
    deep = (shares * WHITE).round().astype(np.uint16)
    return np.ascontiguousarray(np.moveaxis(deep.reshape(channels, *deep.shape[-2:]), 0, 2))


def _window(found: Any) -> tuple[float, float]:
    """The values that are shown as black and white: the file's first window, or all that its bits can hold."""
    center, width = (found.get(name) for name in ("WindowCenter", "WindowWidth"))
    if center is not None and width is not None:
        c, w = (float(value if isinstance(value, (int, float, str)) else value[0]) for value in (center, width))
        if w > 1:  # DICOM PS3.3, C.11.2.1.2
            return c - 0.5 - (w - 1) / 2, c - 0.5 + (w - 1) / 2
    slope, intercept = float(found.get("RescaleSlope", 1)), float(found.get("RescaleIntercept", 0))
    steps = 2**found.BitsStored
    lowest = -steps // 2 if found.PixelRepresentation else 0
    ends = sorted((slope * lowest + intercept, slope * (lowest + steps - 1) + intercept))
    return ends[0], ends[1]


DICOM = FileType(lambda head: head[128:132] == b"DICM", _about, _read)
