"""Decoded images kept on the disk, so that files are decoded once and not in every epoch. Nothing else changes.

A file is kept as the decoder returned it: JPEGs are decoded at a whole, a half, a quarter or an eighth of their size,
whatever the crops need, and each of these is an entry of its own. So views are the same to the bit with and without.
Images of other channels or depths are kept whole, as they are read.
An entry is named after the file's path, size and modification time: a file that is replaced is decoded again, and runs
on the same files share entries.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from effssl.augment.pixel_format import PICTURES, PixelFormat
from effssl.data.cifar import data_folder
from effssl.data.formats import is_raw
from effssl.data.images import Images
from effssl.data.joined import JoinedImages
from effssl.data.parts import EncodedImages
from effssl.runtime.errors import RequestError
from effssl.runtime.files import PARTIAL, check_writable
from effssl.runtime.reading import describe, read_bytes

JPEG = (".jpg", ".jpeg")
LEVELS = (8, 4, 2, 1)  # a JPEG can be decoded at one such part of its size
SHARE = 0.5  # of the disk's space, free or taken by decoded images, that these take at most
RESERVED = 1 << 30  # bytes of the disk that they leave free in any case
WORTH = 5e9  # pixels that a run decodes: below, which is a minute of one core, nothing is kept by itself
FRESH = 86_400  # seconds after which the time of an entry's use is written again
STALE = 3_600  # seconds after which what a killed process left is removed
ENTRY = re.compile(rf"\.?[0-9a-f]{{32}}-[1248](\.\d+{re.escape(PARTIAL)})?")  # no other file is ever removed
HEADER = struct.Struct("<8sIIB")  # MAGIC, height, width, whether the format has one level only
MAGIC = b"effssl 3"
ARRAY_HEADER = struct.Struct("<8sIIII")  # ARRAY_MAGIC, height, width, channels, bytes of a value; values are aligned
ARRAY_MAGIC = b"effssl a"
CHECKSUM = struct.Struct("<I")  # of all before it, at the end


def level_of(height: int, width: int, shrink: float) -> int:
    """The part of its size, as a divisor, at which `decode` decodes a JPEG for `shrink`.

    >>> level_of(480, 640, 0.3), level_of(480, 640, 0.2), level_of(480, 640, 1.5)
    (2, 4, 1)
    """
    if shrink >= 1:
        return 1
    scale = min(height // (int(height * shrink) + 1), width // (int(width * shrink) + 1))
    return next(level for level in LEVELS if level <= max(1, scale))


@dataclass(frozen=True)
class ImageCache:
    """A folder of decoded images; worker processes get a copy of this object."""

    folder: Path

    def decoded(self, stamp: str, size: Sequence[int], shrink: float, decode: Callable[[], Image.Image]) -> Image.Image:
        """The image that `decode()` returns for a file of this stamp, height and width, kept from then on."""
        key, level = key_of(stamp), level_of(size[0], size[1], shrink)
        found = self._read(key, level)
        if found is None and level > 1:  # other formats than JPEG are decoded whole, whatever is asked for
            found = self._read(key, 1, one_level=True)
        if found is None:
            found = decode()
            self._write(key, level, found, (found.height, found.width) == tuple(size))
        return found

    def pixels(self, stamp: str, size: Sequence[int], of: PixelFormat, read: Callable[[], np.ndarray]) -> np.ndarray:
        """The pixels H×W×C that `read()` returns for a file of this stamp, height and width, kept from then on."""
        path, shape = self._path(key_of(stamp, of), 1), (*size, of.channels)
        header = ARRAY_HEADER.pack(ARRAY_MAGIC, *shape, of.bytes // of.channels)
        content = self._content(path)
        if content[: len(header)] == header and len(content) == len(header) + of.bytes * math.prod(size):
            return np.frombuffer(content, of.depth, offset=len(header)).reshape(shape)
        found = read()
        if found.shape == shape:
            self._keep(path, header + found.tobytes())
        return found

    def entries(self) -> Iterator[tuple[str, os.stat_result]]:
        """Path and status of every entry; what killed processes left is removed."""
        for folder in self.folder.glob("[0-9a-f][0-9a-f]"):
            with suppress(OSError), os.scandir(folder) as found:
                for entry in found:
                    with suppress(OSError):
                        if not ENTRY.fullmatch(entry.name):
                            continue
                        status = entry.stat()
                        if not entry.name.endswith(PARTIAL):
                            yield entry.path, status
                        elif time.time() - status.st_mtime > STALE:
                            os.unlink(entry.path)

    def make_room(self, needed: int, keys: Callable[[], set[str]]) -> int:
        """Remove entries, those that were not used for longest first, for `needed` bytes; how many have no room.

        Entries of `keys` stay.
        """
        found = list(self.entries())
        used = sum(status.st_size for _, status in found)
        room = int(SHARE * (shutil.disk_usage(self.folder).free + used))
        if needed > room or needed + used <= room:
            return max(0, needed - room)
        mine = keys()
        others = [one for one in found if os.path.basename(one[0]).partition("-")[0] not in mine]
        too_much = sum(status.st_size for _, status in others) + needed - room
        for path, status in sorted(others, key=lambda one: one[1].st_mtime):
            if too_much > 0:
                with suppress(OSError):
                    os.unlink(path)
                    too_much -= status.st_size
        return 0

    def _path(self, key: str, level: int) -> Path:
        return self.folder / key[:2] / f"{key}-{level}"

    def _read(self, key: str, level: int, one_level: bool = False) -> Image.Image | None:
        content = self._content(self._path(key, level))
        if len(content) < HEADER.size:
            return None
        magic, height, width, only = HEADER.unpack_from(content)
        if magic != MAGIC or len(content) != HEADER.size + 3 * height * width or (one_level and not only):
            return None
        return Image.frombytes("RGB", (width, height), content[HEADER.size :])

    def _content(self, path: Path) -> memoryview:
        """An entry, whose use is noted; nothing of one that is not there, or is damaged."""
        try:
            stored = memoryview(read_bytes(path))
            content = stored[: -CHECKSUM.size]
            # Entries are not synced: a crash may leave zeros.
            if stored[-CHECKSUM.size :] != CHECKSUM.pack(zlib.crc32(content)):
                return memoryview(b"")
            if time.time() - path.stat().st_mtime > FRESH:
                os.utime(path)
        except OSError:
            return memoryview(b"")
        return content

    def _write(self, key: str, level: int, image: Image.Image, whole: bool) -> None:
        """Keep a decoded image; `whole`: it has all of its file's pixels."""
        header = HEADER.pack(MAGIC, image.height, image.width, whole and level > 1)
        self._keep(self._path(key, 1 if whole else level), header + image.tobytes())

    def _keep(self, path: Path, content: bytes) -> None:
        """Write an entry, if the disk has room."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
        with suppress(OSError):  # a full disk, a folder that was deleted: the image is decoded again
            if shutil.disk_usage(self.folder).free < RESERVED:
                return
            path.parent.mkdir(exist_ok=True)
            try:
                temporary.write_bytes(content + CHECKSUM.pack(zlib.crc32(content)))
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)


def key_of(stamp: str, pixels: PixelFormat = PICTURES) -> str:
    """The name of a file's entries, from what changes when the file does; read as 8 and as 16 bits it has two."""
    of = "" if pixels.is_picture else f"\n{pixels}"
    return hashlib.blake2b(os.fsencode(stamp + of), digest_size=16).hexdigest()


class StampedFiles(Protocol):
    """Image files by row, as `EncodedFiles` of effssl/data/decoding.py."""

    def __len__(self) -> int: ...

    def name(self, row: int) -> str:
        """What messages call a file."""

    def stamp(self, row: int) -> str | None:
        """What changes when a file's content does; None if it is not there."""


@dataclass(frozen=True)
class DecodedFiles:
    """The files of a run that are decoded: of each, its size and the largest part of it that crops need."""

    files: StampedFiles
    sizes: Tensor  # N×2
    shrink: Tensor  # N
    pixels: PixelFormat = PICTURES

    @property
    def work(self) -> float:
        """Pixels of all images, three bytes each, that decoding gives."""
        return float(self.sizes.prod(1).sum()) * self.pixels.bytes / 3

    def bytes_needed(self) -> int:
        """Bytes of the images at the level that crops need, and at those below, which take a third of it."""
        needed = 0.0
        for row, ((height, width), shrink) in enumerate(zip(self.sizes.tolist(), self.shrink.tolist(), strict=True)):
            level = level_of(height, width, shrink) if self.files.name(row).lower().endswith(JPEG) else 0
            needed += self.pixels.bytes * height * width * (4 / 3 / level**2 if level else 1)
        return int(needed)

    def keys(self) -> set[str]:
        """The names of their entries."""
        return {key_of(stamp, self.pixels) for row in range(len(self.files)) if (stamp := self.files.stamp(row))}


def open_cache(value: str, sets: Sequence[DecodedFiles], epochs: int, say: Callable[[str], None]) -> ImageCache | None:
    """The cache for a run; None where nothing is to be kept. `value` is off, auto or a folder."""
    little = epochs < 2 or sum(some.work for some in sets) * epochs < WORTH
    if value == "off" or not sets or (value == "auto" and little):
        return None
    cache = ImageCache(data_folder() / "decoded" if value == "auto" else Path(value).expanduser().absolute())
    try:
        cache.folder.mkdir(parents=True, exist_ok=True)
        check_writable(cache.folder)
        needed = sum(some.bytes_needed() for some in sets)
        missing = cache.make_room(needed, lambda: set().union(*(some.keys() for some in sets)))
    except (OSError, RequestError) as error:
        if value != "auto":
            raise RequestError(f"--cache {value} is not a folder that can be written: {describe(error)}") from None
        return None
    size = f"{needed / 1e9:,.1f} GB"
    if missing:
        why = f"decoded images take up to {size}, and half of the free space is {(needed - missing) / 1e9:,.1f} GB"
        if value != "auto":
            raise RequestError(f"--cache {value}: {why}; choose another disk, or use effssl pack")
        say(f"images are decoded in every epoch: {why}; effssl pack makes them smaller")
        return None
    say(f"decoded images are kept in {cache.folder}, up to {size}; --cache off decodes them in every epoch")
    return cache


def decoded_files(images: Images, shrink: Tensor) -> list[DecodedFiles]:
    """The files that images are decoded from, those of several sets one after another; shrink: N."""
    if isinstance(images, JoinedImages):
        mine = [images.part_of == number for number in range(len(images.parts))]
        parts = zip(images.parts, mine, strict=True)
        return [one for part, rows in parts for one in decoded_files(part.select(images.row_of[rows]), shrink[rows])]
    if not isinstance(images, EncodedImages):
        return []
    if not images.pixel_format.is_picture:
        files = images.files()
        rows = torch.tensor([row for row in range(len(files)) if not is_raw(files.name(row))], dtype=torch.long)
        images, shrink = images.select(rows), shrink[rows]
    return [DecodedFiles(images.files(), images.sizes, shrink, images.pixel_format)] if len(images) else []
