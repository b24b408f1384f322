"""Which files a run is trained on: listed in its folder, so that it resumes with the very same ones."""

from __future__ import annotations

import io
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

from effssl.data.dataset import Data
from effssl.data.folder import FolderImages
from effssl.data.images import Images
from effssl.data.joined import JoinedImages
from effssl.runtime.cores import usable_cores
from effssl.runtime.errors import RequestError
from effssl.runtime.files import write_atomically
from effssl.runtime.progress import say
from effssl.runtime.reading import read_arrays

STAMPED = 4096  # bytes at the beginning, the middle and the end of a file by which it is recognized


def keep_lists(images: Images, folder: Path) -> None:
    """Store the files of each folder of images that a run is trained on, once."""
    for path, part in _lists(images, folder).values():
        if not path.is_file():
            write_list(part, path)


def with_listed(data: Data, folder: Path) -> Data:
    """The data set with the training images of the lists in a run's folder, whatever happened to its own folders."""
    lists = _lists(data.train, folder)
    listed = {number: as_listed(part, path) for number, (path, part) in lists.items() if path.is_file()}
    if not listed:
        return data
    train = _joined_again(data.train, listed) if isinstance(data.train, JoinedImages) else listed[0]
    return replace(data, train=train)


def _lists(images: Images, folder: Path) -> dict[int, tuple[Path, FolderImages]]:
    """Folders among some sets of images, by their number: the file of each list, and the images in it."""
    if isinstance(images, FolderImages):
        return {0: (folder / "images.npz", images)}
    if not isinstance(images, JoinedImages):
        return {}
    return {
        number: (folder / f"images-{number}.npz", part.select(images.row_of[images.part_of == number]))
        for number, part in enumerate(images.parts)
        if isinstance(part, FolderImages) and bool((images.part_of == number).any())  # a subset may leave one out
    }


def _joined_again(images: JoinedImages, listed: dict[int, FolderImages]) -> JoinedImages:
    """Several sets with the listed images in place of some parts; rows are ordered by part, as they were."""
    parts = list(images.parts)
    rows, labels = [], []
    first_class = accumulate((len(part.classes) for part in parts), initial=0)
    for number, first in zip(range(len(parts)), first_class, strict=False):
        mine = images.part_of == number
        if number in listed:
            parts[number] = part = listed[number]
            rows.append(torch.arange(len(part)))
            labels.append(None if part.labels is None else part.labels + first)
        else:
            rows.append(images.row_of[mine])
            labels.append(None if images.labels is None else images.labels[mine])
    part_of = torch.cat([torch.full((len(some),), number) for number, some in enumerate(rows)])
    known = None if images.labels is None else torch.cat([some for some in labels if some is not None])
    return replace(images, parts=parts, part_of=part_of, row_of=torch.cat(rows), labels=known)


def write_list(images: Images, path: Path) -> None:
    """Store which files a run is trained on, so that it resumes with the same ones, whatever happens to the folder."""
    assert images.paths is not None
    names = np.array([os.fsencode(os.path.abspath(file)) for file in images.paths])  # it may resume from elsewhere
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {"names": names, "sizes": images.sizes.numpy(), "contents": file_stamps(images.paths)}
    if images.labels is not None:
        arrays |= {"labels": images.labels.numpy(), "classes": np.array([os.fsencode(c) for c in images.classes])}
    np.savez_compressed(buffer, **arrays)
    write_atomically(path, buffer.getvalue())


def file_stamps(paths: list[Path]) -> np.ndarray:
    """A number per file that changes with its content, N int64: of its length, its beginning, its middle and its end.

    Unlike a modification time it is the same for a copy of the file. −1 for a file that cannot be read.
    """

    def stamp(path: Path) -> int:
        try:
            with path.open("rb") as file:
                length = os.fstat(file.fileno()).st_size
                found = zlib.crc32(file.read(STAMPED), length & 0xFFFFFFFF)
                for start in (length // 2, length - STAMPED):
                    file.seek(max(0, start))
                    found = zlib.crc32(file.read(STAMPED), found)
                return found
        except OSError:
            return -1

    with ThreadPoolExecutor(usable_cores()) as pool:
        return np.fromiter(pool.map(stamp, paths), np.int64, len(paths))


def _refuse_replaced(paths: list[Path], stamps: np.ndarray) -> None:
    now = file_stamps(paths)
    replaced = np.flatnonzero((now != stamps) & (now >= 0) & (stamps >= 0))
    if len(replaced):
        raise RequestError(
            f"{len(replaced)} of {len(paths)} images have other content than when the run began, e.g. "
            f"{paths[replaced[0]]}; train a new run"
        )


def _say_changes(gone: int, new: int) -> None:
    changes = [f"{gone} images are gone and left out"] if gone else []
    changes += [f"{new} new images are not used"] if new else []
    if changes:
        say(f"the folder has changed since the run began: {', '.join(changes)}")


def as_listed(images: Images, path: Path) -> FolderImages:
    """The files of a stored list; missing ones are left out when they are read, new ones are not used."""
    try:
        stored = read_arrays(path)
        paths = [Path(os.fsdecode(name)) for name in stored["names"].tolist()]
        sizes = torch.from_numpy(stored["sizes"])
        labels = torch.from_numpy(stored["labels"]) if "labels" in stored else None
        classes = [os.fsdecode(name) for name in stored["classes"].tolist()] if "classes" in stored else []
        stamps = stored.get("contents", np.full(len(paths), -1))
        if sizes.shape != (len(paths), 2) or stamps.shape != (len(paths),) or sizes.min() < 1:
            raise ValueError("its columns do not fit together")
        if labels is not None and (
            labels.shape != (len(paths),) or not 0 <= labels.min() <= labels.max() < len(classes)
        ):
            raise ValueError("its labels do not fit its classes")
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise RequestError(f"{path}, the list of the run's images, cannot be read: {error}") from None
    if classes != images.classes:
        raise RequestError("the classes of the images have changed since the run began; train a new run")
    there = {Path(os.path.abspath(file)) for file in images.paths or []}
    _say_changes(len(set(paths) - there), len(there - set(paths)))
    _refuse_replaced(paths, stamps)
    return FolderImages(paths, sizes, labels, classes, images.pixel_format)
