"""PNG files of 16 bits: pillow keeps 8 of them where there is color."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import BinaryIO

import numpy as np
from PIL import Image

from effssl.data.file_types.file_type import FileAbout, FileType, format_for, over_white

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # by color type; 4 and 6 have an alpha channel
ORIENTATION = 0x0112  # the EXIF tag
TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.transpose(1, 0, 2),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: x[::-1, ::-1].transpose(1, 0, 2),
    8: lambda x: np.rot90(x),
}
"""From how an image is stored to how it is displayed, by its orientation."""


def _begins(head: bytes) -> bool:
    return head.startswith(SIGNATURE) and head[24:25] == b"\x10"


def _about(file: BinaryIO) -> FileAbout:
    width, height, _, color = struct.unpack(">IIBB", file.read(26)[16:])
    channels = CHANNELS[color]
    if _orientation(file) >= 5:
        width, height = height, width
    return FileAbout(height, width, format_for(channels - (channels in (2, 4)), "uint16"), is_picture=True)


def _read(file: BinaryIO) -> np.ndarray:
    """By pillow, twice where there is color: libpng in torchvision ends the process at what it does not expect."""
    color = file.read(26)[25]
    pixels: np.ndarray
    if color == 4:  # without an unpacker of pillow, but with the bytes of an image of 8 bits and four channels
        file = io.BytesIO(_with_header(file, depth=8, color=6))
        whole = _unpacked(file).astype(np.uint16)
        pixels = whole[..., ::2] << 8 | whole[..., 1::2]
    elif color == 0:
        pixels = _unpacked(file)[..., None].astype(np.uint16)
    else:
        mode = "RGB" if color == 2 else "RGBA"
        pixels = _unpacked(file, f"{mode};16B").astype(np.uint16) << 8 | _unpacked(file, f"{mode};16L")
    pixels = over_white(pixels) if pixels.shape[2] in (2, 4) else pixels
    turn = TURNS.get(_orientation(file))
    return np.ascontiguousarray(turn(pixels)) if turn else pixels


def _unpacked(file: BinaryIO, raw: str = "") -> np.ndarray:
    """The values of an image; `raw` is the unpacker of pillow that takes the upper or the lower bytes of 16 bits."""
    file.seek(0)
    with Image.open(file, formats=("PNG",)) as image:
        if raw:
            image.tile = [(*tile[:3], raw) for tile in image.tile]  # type: ignore[misc]
        return np.asarray(image)


def _with_header(file: BinaryIO, depth: int, color: int) -> bytes:
    """The file with another number of bits and another color type in its header."""
    file.seek(0)
    content = file.read()
    header = content[12:24] + bytes([depth, color]) + content[26:29]
    return content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]


def _orientation(file: BinaryIO) -> int:
    file.seek(0)
    with Image.open(file, formats=("PNG",)) as image:
        return image.getexif().get(ORIENTATION, 1)


DEEP_PNG = FileType(_begins, _about, _read)
