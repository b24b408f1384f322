"""DICOM files: values in the file's window become 16 bits; color of 8 bits is a picture. Frames are channels.

Files without the 128 bytes before the signature, as old ones are, begin with their first element.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, BinaryIO

import numpy as np

from effssl.augment.pixel_format import LIMITS, MOST_CHANNELS
from effssl.data.file_types.file_type import FileAbout, FileType, format_for
from effssl.runtime.errors import RequestError

WHITE = LIMITS["uint16"][1]
FIRST_GROUPS = (b"\x02\0", b"\x08\0")  # of elements: about the file, about the image; numbers are little-endian
PALETTE = "PALETTE COLOR"


def _begins(head: bytes) -> bool:
    if head[128:132] == b"DICM":
        return True
    value = head[4:8]  # a type of two letters, or the length of what is short at the beginning of a file
    typed = value[:2].isalpha() and value[:2].isupper()
    return head[:2] in FIRST_GROUPS and head[3:4] == b"\0" and (typed or (len(value) == 4 and value[1:] == b"\0\0\0"))


def _pydicom() -> ModuleType:
    try:
        import pydicom
    except ImportError:
        raise RequestError("DICOM files need the package pydicom: pip install 'effssl[dicom]'") from None
    return pydicom


def _open(file: BinaryIO) -> Any:
    found = _pydicom().dcmread(file, force=True)  # without a signature, too: `_begins` has looked for it
    if "PixelData" not in found or "Rows" not in found:
        raise OSError("it is a DICOM file without pixels")
    if "TransferSyntaxUID" not in found.file_meta:  # nothing says how pixels are stored: plainly, as all else
        from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian

        is_implicit, _ = found.original_encoding
        found.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian if is_implicit else ExplicitVRLittleEndian
    return found


def _about(file: BinaryIO) -> FileAbout:
    found = _open(file)
    channels = _channels(found)
    return FileAbout(found.Rows, found.Columns, format_for(channels, "uint8" if _is_color(found) else "uint16"))


def _is_color(found: Any) -> bool:
    return (found.SamplesPerPixel == 3 and found.BitsAllocated == 8) or found.PhotometricInterpretation == PALETTE


def _channels(found: Any) -> int:
    frames = int(found.get("NumberOfFrames") or 1)
    if _is_color(found) and frames == 1:
        return 3
    if found.PhotometricInterpretation == PALETTE:
        raise OSError(f"it has {frames} frames of color")
    if found.SamplesPerPixel != 1 or frames > MOST_CHANNELS:
        raise OSError(f"it has {frames} frames of {found.SamplesPerPixel} samples; images have up to {MOST_CHANNELS}")
    return frames


def _read(file: BinaryIO) -> np.ndarray:
    found = _open(file)
    channels = _channels(found)
    from pydicom.pixels import apply_color_lut, apply_modality_lut

    if found.PhotometricInterpretation == PALETTE:
        colors = apply_color_lut(found.pixel_array, found)[..., :3]
        deep = found.RedPaletteColorLookupTableDescriptor[2] == 16
        return np.ascontiguousarray(colors >> 8 if deep else colors).astype(np.uint8)
    if _is_color(found):
        return np.ascontiguousarray(found.pixel_array)
    values = np.asarray(apply_modality_lut(found.pixel_array, found), np.float64)
    low, high = _window(found)
    # A window of width 1 is a threshold.
    shares = ((values - low) / (high - low)).clip(0, 1) if high > low else (values > low).astype(np.float64)
    if found.PhotometricInterpretation == "MONOCHROME1":  # small values are bright
        shares = 1 - shares
    deep = (shares * WHITE).round().astype(np.uint16)
    return np.ascontiguousarray(np.moveaxis(deep.reshape(channels, *deep.shape[-2:]), 0, 2))


def _window(found: Any) -> tuple[float, float]:
    """The values that are shown as black and white: the file's first window, or all that its bits can hold."""
    center, width = (found.get(name) for name in ("WindowCenter", "WindowWidth"))
    if center is not None and width is not None:
        c, w = (float(value if isinstance(value, (int, float, str)) else value[0]) for value in (center, width))
        if w >= 1:  # DICOM PS3.3, C.11.2.1.2
            return c - 0.5 - (w - 1) / 2, c - 0.5 + (w - 1) / 2
    slope, intercept = float(found.get("RescaleSlope", 1)), float(found.get("RescaleIntercept", 0))
    steps = 2**found.BitsStored
    lowest = -steps // 2 if found.PixelRepresentation else 0
    ends = sorted((slope * lowest + intercept, slope * (lowest + steps - 1) + intercept))
    return ends[0], ends[1]


DICOM = FileType(_begins, _about, _read)
