"""Images inside zip and tar files, read in place: nothing is unpacked, and no name leads out of the archive."""

from __future__ import annotations

import hashlib
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from effssl.augment.pixel_format import PICTURES, PixelFormat
from effssl.data.decoding import crop_files, stamp_of
from effssl.data.display import picture
from effssl.data.file_types.file_type import FileAbout
from effssl.data.formats import FormatsFound, examine, measured_range, read_pixels
from effssl.data.images import CropRequest, Crops, Reading, hex_digest, select_labels
from effssl.runtime.cores import usable_cores
from effssl.runtime.errors import RequestError, Stopped
from effssl.runtime.progress import progress_bar
from effssl.runtime.reading import check_archive, check_regular, describe

if TYPE_CHECKING:
    from typing_extensions import Self

PLAIN, STORED, DEFLATED = range(3)  # a member of a tar; of a zip, as it is or compressed
MEMBER = np.dtype(
    [("archive", "<i4"), ("kind", "u1"), ("offset", "<i8"), ("packed", "<i8"), ("length", "<i8"), ("crc", "<u4")]
)  # crc: of a zip's member, by its directory; of a tar's, of its beginning
LARGEST = 1 << 30  # bytes of a member that is read
LONGEST_NAME = 4096  # characters; an array of names has the width of the longest
BEGINNING = 1 << 16  # bytes in which the size of a JPEG is found
BLOCK = 4096  # members that threads examine at a time: futures of all would take much memory
LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a zip's member: signature, length of its name, of its extra field

Found = tuple[str, int, int, int, int, int]  # name, kind, offset, packed, length, crc; kind −1: cannot be read


@dataclass(frozen=True)
class Members:
    """Files inside archives: where each begins, how long it is. Arrays, so that a million of them stay small."""

    archives: list[Path]
    table: np.ndarray  # N of MEMBER
    names: np.ndarray  # N bytes: the path inside the archive

    def __len__(self) -> int:
        return len(self.table)

    def pick(self, rows: np.ndarray) -> Members:
        """Some of them."""
        return replace(self, table=self.table[rows], names=self.names[rows])

    def inside(self, row: int) -> PurePosixPath:
        """The path inside the archive."""
        return PurePosixPath(os.fsdecode(self.names[row]))

    def path(self, row: int) -> Path:
        """The archive and the path inside it; no such file exists."""
        return self.archives[self.table["archive"][row]] / self.inside(row)

    def name(self, row: int) -> str:
        """What messages call a file."""
        return str(self.path(row))

    def content(self, row: int) -> bytes:
        """A file's bytes; raises OSError if they cannot be read."""
        member = self.table[row]
        content = self._read(row, int(member["packed"]))
        if member["kind"] == DEFLATED:
            try:  # never more than the directory says, whatever the bytes expand to
                content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, max(1, int(member["length"])))
            except zlib.error as error:
                raise OSError(f"its compressed bytes are damaged ({error})") from None
        if member["kind"] != PLAIN and zlib.crc32(content) != member["crc"]:
            raise OSError("its checksum does not fit")
        return content

    def stamp(self, row: int) -> str | None:
        """Path, size and modification time of the archive, and where the file begins."""
        member = self.table[row]
        return stamp_of(self.archives[member["archive"]], str(member["offset"]))

    def beginning(self, row: int) -> bytes:
        """The first bytes of a file; all of one that is compressed."""
        if self.table["kind"][row] == DEFLATED:
            return self.content(row)
        return self._read(row, min(BEGINNING, int(self.table["packed"][row])))

    def records(self) -> Iterator[bytes]:
        """Of each file, its name, length and checksum."""
        columns = (self.table[key].tolist() for key in ("length", "crc"))
        for name, length, crc in zip(self.names.tolist(), *columns, strict=True):
            yield name + f" {length} {crc}\n".encode()

    def _read(self, row: int, count: int) -> bytes:
        member = self.table[row]
        with self.archives[member["archive"]].open("rb") as file:  # a handle of its own: threads, processes share none
            file.seek(int(member["offset"]))
            content = file.read(count)
        if len(content) < count:
            raise OSError("the archive ends before it")
        return content


class StoredFiles(Protocol):
    """Image files inside something larger, as `Members` and the rows of a Hugging Face data set are."""

    def __len__(self) -> int: ...

    def name(self, row: int) -> str:
        """What messages call a file."""

    def content(self, row: int) -> Path | bytes:
        """A file's path or its bytes; raises OSError if it cannot be read."""

    def stamp(self, row: int) -> str | None:
        """What changes when a file's content does; None if it is not there."""

    def path(self, row: int) -> Path:
        """What it is stored in, and its name there."""

    def pick(self, rows: np.ndarray) -> Self:
        """Some of them."""

    def records(self) -> Iterator[bytes]:
        """Of each file, what changes when its name or content does."""


Files = TypeVar("Files", bound=StoredFiles)


@dataclass(frozen=True)
class ArchiveImages(Generic[Files]):
    """Images of any size inside archives, decoded each time they are read."""

    members: Files
    sizes: Tensor  # N×2 int64: height, width as displayed
    labels: Tensor | None = None
    classes: list[str] = field(default_factory=list)
    pixel_format: PixelFormat = PICTURES
    reported: set[str] = field(default_factory=set, repr=False, compare=False)  # files that were said to be left out
    in_memory = False
    from_files = True

    def __len__(self) -> int:
        return len(self.members)

    @cached_property
    def paths(self) -> list[Path]:
        """Archive and name of every image."""
        return [self.members.path(row) for row in range(len(self))]

    def files(self) -> Files:
        """The files as workers read them."""
        return self.members

    def select(self, rows: Tensor) -> ArchiveImages[Files]:
        """The same set with only these rows."""
        members = self.members.pick(rows.numpy())
        return replace(self, members=members, sizes=self.sizes[rows], labels=select_labels(self.labels, rows))

    def fingerprint(self) -> str:
        """A short digest of the files' names, lengths, checksums and labels."""
        digest = hashlib.blake2b(digest_size=8)
        for record in self.members.records():
            digest.update(record)
        return hex_digest(digest, self.labels)

    def array(self, row: int) -> np.ndarray:
        """The pixels of one whole image, H×W×C."""
        return read_pixels(self.members.content(row), self.pixel_format)

    def image(self, row: int) -> Image.Image:
        """One whole image."""
        return picture(self.array(row), self.pixel_format)

    def crops(self, requests: Iterable[CropRequest], reading: Reading) -> Iterator[Crops]:
        """The crops of each request, in order; workers decode some batches ahead."""
        return crop_files(self.members, self.sizes, self.pixel_format, requests, reading, self.reported)


def read_members(archives: list[Path], suffixes: tuple[str, ...], unreadable: list[str]) -> Members:
    """All files of archives with one of these suffixes, by name; what cannot be read is added to `unreadable`."""
    names: list[bytes] = []
    rows: list[tuple[int, ...]] = []
    for number, archive in enumerate(archives):
        size, found = _size_of(archive), []
        for name, kind, offset, packed, length, crc in _scan(archive):
            path = PurePosixPath(name)
            if not path.name.lower().endswith(suffixes) or path.name.startswith("."):
                continue
            outside = path.is_absolute() or ".." in path.parts or len(name) > LONGEST_NAME
            if kind < 0 or outside or max(packed, length) > LARGEST or offset + packed > size:
                unreadable.append(f"{archive}: {name}")
            else:
                found.append((os.fsencode(str(path)), (number, kind, offset, packed, length, crc)))
        for inside, row in sorted(found):
            names.append(inside)
            rows.append(row)
    return Members(archives, np.array(rows, MEMBER), np.array(names, "S"))


def find_images(members: Members, unreadable: list[str]) -> tuple[ArchiveImages[Members], np.ndarray]:
    """The members that are images, and their rows; the others are added to `unreadable`."""
    sizes, formats = np.zeros((len(members), 2), np.int64), FormatsFound()

    def read_header(row: int) -> tuple[FileAbout | None, int]:
        try:
            beginning = members.beginning(row)
            about = examine(beginning) if beginning.startswith(b"\xff\xd8") else None
            return about or examine(members.content(row)), zlib.crc32(beginning)
        except OSError:
            return None, 0

    table = members.table.copy()
    pool = ThreadPoolExecutor(usable_cores())
    with pool, progress_bar(f"reading {len(members)} image sizes", len(members)) as advance:
        for start in range(0, len(members), BLOCK):
            rows = range(start, min(start + BLOCK, len(members)))
            for row, (about, crc) in zip(rows, pool.map(read_header, rows), strict=True):
                if about is not None:
                    sizes[row] = about.size
                    formats.add(row, about)
                if table["kind"][row] == PLAIN:
                    table["crc"][row] = crc
            advance(len(rows))
    good = np.flatnonzero(sizes[:, 0])
    unreadable += [members.name(row) for row in np.flatnonzero(sizes[:, 0] == 0).tolist()]
    if not len(good):
        raise RequestError(f"none of the {len(members)} image files can be read, e.g. {unreadable[0]}")
    members = replace(members, table=table)
    pixels = formats.common(members.name)
    pixels = measured_range(pixels, len(good), lambda place: read_pixels(members.content(int(good[place])), pixels))
    return ArchiveImages(members.pick(good), torch.from_numpy(sizes[good]), pixel_format=pixels), good


def _size_of(archive: Path) -> int:
    try:
        check_regular(archive)
        return archive.stat().st_size
    except OSError as error:
        raise RequestError(f"{archive} cannot be read: {describe(error)}") from None


def _scan(archive: Path) -> Iterator[Found]:
    try:
        with archive.open("rb") as file:  # by its beginning: a tar may end with a zip file
            zipped = file.read(4) in (b"PK\x03\x04", b"PK\x05\x06")
        yield from _scan_zip(archive) if zipped else _scan_tar(archive)
    except (RequestError, Stopped, GeneratorExit):
        raise
    except Exception as error:  # damaged archives raise anything: BadZipFile, struct.error, UnicodeDecodeError …
        raise RequestError(f"{archive} is not a zip or tar file that can be read: {describe(error)}") from None


def _scan_zip(archive: Path) -> Iterator[Found]:
    kinds = {zipfile.ZIP_STORED: STORED, zipfile.ZIP_DEFLATED: DEFLATED}
    with zipfile.ZipFile(archive) as directory, archive.open("rb") as file:
        check_archive(directory, archive.stat().st_size)
        for member in directory.infolist():
            if member.is_dir():
                continue
            kind = -1 if member.flag_bits & 1 else kinds.get(member.compress_type, -1)  # 1: encrypted
            file.seek(member.header_offset)
            signature, name, extra = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
            if signature != b"PK\x03\x04":
                kind = -1
            offset = member.header_offset + LOCAL_HEADER.size + name + extra
            yield member.filename, kind, offset, member.compress_size, member.file_size, member.CRC


def _scan_tar(archive: Path) -> Iterator[Found]:
    with tarfile.open(archive, "r:") as tar:
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # it would keep an object for each
            if member.size < 0:  # the next one would be before this one, without end
                raise ValueError(f"{member.name} has a size below 0")
            if not member.isdir():
                plain = member.isreg() and not member.issparse()  # a link could lead anywhere
                yield member.name, PLAIN if plain else -1, member.offset_data, member.size, member.size, 0
