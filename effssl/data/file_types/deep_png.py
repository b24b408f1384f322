"""PNG files of 16 bits: pillow keeps 8 of them where there is color."""

from __future__ import annotations

import struct
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
    import torch
    from torchvision.io import ImageReadMode, decode_png

    content = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    pixels = decode_png(content, ImageReadMode.UNCHANGED).permute(1, 2, 0).numpy().astype(np.uint16)
    pixels = over_white(pixels) if pixels.shape[2] in (2, 4) else pixels
    turn = TURNS.get(_orientation(file))
    return np.ascontiguousarray(turn(pixels)) if turn else pixels


def _orientation(file: BinaryIO) -> int:
    file.seek(0)
    with Image.open(file, formats=("PNG",)) as image:
        return image.getexif().get(ORIENTATION, 1)


DEEP_PNG = FileType(_begins, _about, _read)
