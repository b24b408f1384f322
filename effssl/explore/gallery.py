"""The images that are explored, with a name and perhaps a label each."""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from effssl.data import Images, open_data
from effssl.data.folder import TEST_NAMES, VALIDATION_NAMES, find_images
from effssl.data.pack import is_pack
from effssl.runtime.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence


ESCAPED = re.compile(rb"\\x([89a-f][0-9a-f])")  # a byte that is no text, as printable names have it


@dataclass(frozen=True)
class Gallery:
    """Images in a fixed order; the name of each is its path, or its index where there are no files."""

    splits: list[Images]
    names: list[str]
    labels: list[str | None] | None  # None where no image has one
    numbered: bool  # names are indices
    unreadable: list[str]  # files that are in no split

    def __len__(self) -> int:
        return len(self.names)

    def fingerprint(self) -> str:
        """A short digest of all names, sizes and labels, and of the files' modification times."""
        digest = hashlib.blake2b(digest_size=8)
        for name in self.names:
            digest.update(f"{name}\n".encode())
        for path in (path for images in self.splits if images.from_files for path in images.paths or []):
            with suppress(OSError):  # deleted meanwhile: the decoder will report it
                status = path.stat()
                digest.update(f"{status.st_size} {status.st_mtime_ns}\n".encode())
        digest.update(json.dumps([self.labels, *(images.fingerprint() for images in self.splits)]).encode())
        return digest.hexdigest()


def open_gallery(data: str | Path, labels: str = "auto") -> Gallery:
    """All images of a folder of any layout, or of another data set: its training images, then its test images."""
    if labels not in ("auto", "folders", "none"):
        raise RequestError(f"labels is {labels!r}; it must be auto, folders or none")
    path = Path(os.path.abspath(Path(data).expanduser()))  # features are used from other working folders, too
    if str(data) and path.is_dir() and not is_pack(path):
        return _open_folder(path, labels)
    opened = open_data(str(data), labels)
    splits = [images for images in (opened.train, opened.test, opened.held_out) if images is not None]
    paths = [path for images in splits for path in images.paths or []]
    names = [printable(path) for path in paths] or [str(i) for i in range(sum(map(len, splits)))]
    known: list[str | None] = [
        printable(images.classes[label])
        for images in splits
        if images.labels is not None
        for label in images.labels.tolist()
    ]
    complete = len(known) == len(names) and labels != "none"
    return Gallery(splits, names, known if complete else None, not paths, opened.unreadable)


def _open_folder(root: Path, labels: str) -> Gallery:
    unreadable: list[str] = []
    # Never in memory, however small each is: many small images are large together, and queries are files, too.
    images = find_images(root, unreadable)
    return Gallery(
        [images], [printable(path) for path in images.paths], _labels(root, images.paths, labels), False, unreadable
    )


def printable(path: Path | str) -> str:
    """A path as valid text, even where its bytes are not."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def real_path(name: str) -> Path:
    """The file of a printable name, whose own name may hold bytes that are no text."""
    path = Path(name)
    return path if os.path.lexists(path) else Path(unescaped(name))


def unescaped(name: str) -> str:
    """A printable name as the file system has it.

    >>> os.fsencode(unescaped(printable(os.fsdecode(b"caf\\xe9.jpg"))))
    b'caf\\xe9.jpg'
    """
    return os.fsdecode(ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), os.fsencode(name)))


def _labels(root: Path, paths: Sequence[Path], labels: str) -> list[str | None] | None:
    """The first folder below the root (below train/, val/ or test/ in such a layout) is the label."""
    below = [path.relative_to(root).parts[:-1] for path in paths]
    if labels == "folders":
        loose = next((path for path, folders in zip(paths, below, strict=True) if not folders), None)
        if loose:
            raise RequestError(f"sub-folders of {root} are labels, but {loose.name} is in none of them")
        return [printable(folders[0]) for folders in below]
    splits = ("train", *TEST_NAMES, *VALIDATION_NAMES)
    inside = [folders for folders in below if folders and folders[0] in splits]
    split = {folders[0] for folders in inside} - {"train"} and any(folders[0] == "train" for folders in inside)
    if labels == "none" or not split or any(len(folders) < 2 for folders in inside):
        return None
    return [printable(folders[1]) if folders and folders[0] in splits else None for folders in below]
