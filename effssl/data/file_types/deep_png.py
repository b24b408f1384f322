"""PNG files of 16 bits: pillow keeps 8 of them where there is color."""

from __future__ import annotations

import struct
from typing import BinaryIO

import numpy as np

from effssl.data.file_types.file_type import FileAbout, FileType, format_for, over_white

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # by color type; 4 and 6 have an alpha channel


def _begins(head: bytes) -> bool:
    return head.startswith(SIGNATURE) and head[24:25] == b"\x10"


def _about(file: BinaryIO) -> FileAbout:
    width, height, _, color = struct.unpack(">IIBB", file.read(26)[16:])
    channels = CHANNELS[color]
    return FileAbout(height, width, format_for(channels - (channels in (2, 4)), "uint16"), is_picture=True)


def _read(file: BinaryIO) -> np.ndarray:
    import torch
    from torchvision.io import ImageReadMode, decode_png

    content = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    pixels = decode_png(content, ImageReadMode.UNCHANGED).permute(1, 2, 0).numpy().astype(np.uint16)
    return over_white(pixels) if pixels.shape[2] in (2, 4) else pixels


DEEP_PNG = FileType(_begins, _about, _read)
