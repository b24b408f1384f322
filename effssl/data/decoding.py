"""Worker processes that decode image files and crop them, in order. Nothing random happens here."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from effssl.augment.crop import center_boxes
from effssl.augment.pipeline import flip_crops
from effssl.augment.pixel_format import LIMITS, PixelFormat
from effssl.data.formats import decode_picture, is_raw, read_pixels
from effssl.data.images import CropRequest, Crops, Reading, repeated, upload
from effssl.runtime.cores import cores_per_process
from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.processes import die_with_parent
from effssl.runtime.progress import say

FORK = "fork" if sys.platform == "linux" else None  # workers are children of the run and end with it
MOST_WORKERS = 1024  # as many as there are cores where there are most
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
MARGIN = 2  # a JPEG is decoded at no less than twice the size that is needed, so that antialiasing stays ours
RESAMPLE = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}

# torch warns where there are more workers than cores; whoever asks for that knows.
warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)

Boxes = list[tuple[int, list[list[int]]]]  # of one image, per group: side, and its boxes of top, left, height, width


def least_side(size: int, share: float) -> int:
    """Pixels of the shorter side that a JPEG is decoded with at least, for a center square of this share.

    >>> least_side(224, 0.875)
    512
    """
    return MARGIN * math.ceil(size / share)


def worker_count(workers: int) -> int:
    """Number of worker processes; -1 is one per core that this process may use."""
    if workers > MOST_WORKERS:  # each is a copy of this process
        raise RequestError(f"--workers is {workers}; it must be at most {MOST_WORKERS}")
    return cores_per_process() if workers < 0 else workers


def begin_worker(_: int, parent: int) -> None:
    """Make a worker leave the main process's group, whose signals are not for it, and end when its parent ends."""
    os.setpgid(0, 0)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # drops a signal that came meanwhile
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # how the main process ends a worker
    die_with_parent(parent)


def _worker_ended() -> RunFailed:
    return RunFailed(
        "a process that decodes images was ended from outside, perhaps because memory ran out: "
        "fewer --workers need less. What was saved before is intact"
    )


def started(loader: DataLoader) -> Iterator[Any]:
    """Start a loader's workers; signals are blocked until the workers have left the process group."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    of_children = signal.getsignal(signal.SIGCHLD)
    try:
        return iter(loader)
    finally:
        if threading.current_thread() is threading.main_thread():
            # torch's handler raises wherever the main process is when a worker ends, even in a destructor; without it
            # the loader itself notices.
            signal.signal(signal.SIGCHLD, of_children or signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class EncodedFiles(Protocol):
    """Image files by row, on the disk or inside archives; a worker process gets a copy."""

    def __len__(self) -> int: ...

    def name(self, row: int) -> str:
        """What messages call a file."""

    def content(self, row: int) -> Path | bytes:
        """A file's path or its bytes; raises OSError if it cannot be read."""

    def stamp(self, row: int) -> str | None:
        """What changes when a file's content does: its place, size and modification time; None if it is not there."""


class DiskFiles:
    """Image files of their own."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = np.array([os.fsencode(path) for path in paths])  # one buffer, not a list copied on fork

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, row: int) -> str:
        """What messages call a file."""
        return os.fsdecode(self.paths[row])

    def content(self, row: int) -> Path:
        """A file's path."""
        return Path(os.fsdecode(self.paths[row]))

    def stamp(self, row: int) -> str | None:
        """Its path, size and modification time."""
        return stamp_of(self.content(row))


def stamp_of(path: Path, inside: str = "") -> str | None:
    """A file's path, size and modification time, and a place inside it; None if it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return f"{os.path.abspath(path)}\n{status.st_size} {status.st_mtime_ns} {inside}"


def crop_files(
    files: EncodedFiles,
    sizes: Tensor,
    pixels: PixelFormat,
    requests: Iterable[CropRequest],
    reading: Reading,
    reported: set[str],
) -> Iterator[Crops]:
    """Let workers decode and crop files of one format; flipping and scaling to [0, 1] happen on the device.

    sizes: N×2, height and width as displayed. A file that cannot be decoded is reported, unless it is in `reported`,
    where it is then: a run reads its images many times.
    """
    reading.scaling(pixels)  # refuses pixels that the reader does not take before any worker starts
    kept = reading.kept_loaders if reading.kept_loaders is not None else {}
    loader = kept.pop(sizes) if sizes in kept else _loader(files, sizes, pixels, reading)
    sampler = loader.batch_sampler
    assert isinstance(sampler, _Requests)
    sampler.begin(requests)
    try:
        for crops, readable, failed in started(loader):
            for line in sorted(set(failed) - reported):
                say(f"left out, cannot be decoded: {line}")
            reported.update(failed)
            yield _on_device(sampler.waiting.popleft(), crops, readable, pixels, reading)
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise _worker_ended() from error
    except (ConnectionError, EOFError) as error:  # it was handing something over
        raise _worker_ended() from error
    finally:
        sampler.begin(())
        kept[sizes] = loader


def _loader(files: EncodedFiles, sizes: Tensor, pixels: PixelFormat, reading: Reading) -> DataLoader:
    workers = worker_count(reading.workers)
    return DataLoader(
        (PictureCrops if pixels.is_picture else ArrayCrops)(files, sizes, pixels, reading),
        multiprocessing_context=FORK if workers else None,
        batch_sampler=_Requests(),
        num_workers=workers,
        collate_fn=_collate,
        worker_init_fn=partial(begin_worker, parent=os.getpid()),
        persistent_workers=bool(workers and reading.kept_loaders is not None),
    )


def _on_device(
    request: CropRequest, parts: list[Tensor], readable: Tensor, pixels: PixelFormat, reading: Reading
) -> Crops:
    """Flip and scale the crops of workers, per group N×V×C×S×S, and stack the views of an image along the height."""
    low, factor, repeats = reading.scaling(pixels)
    groups = {}
    for i, (name, group) in enumerate(request.groups.items()):
        flips = group.flips.view(len(request.rows), -1)[readable]  # N×V
        none = torch.empty(0, flips.shape[1], pixels.channels, group.side, group.side, dtype=torch.uint8)
        crops = upload(parts[i] if parts else none, reading.device)
        groups[name] = repeated(flip_crops(crops - low if low else crops, flips, factor), repeats)
    return Crops(readable, groups)


class _Requests:
    """Requests as a DataLoader's batches, taken one by one as workers become free: an epoch's boxes are many."""

    def begin(self, requests: Iterable[CropRequest]) -> None:
        """Take other requests from now on."""
        self.requests = requests
        self.waiting: deque[CropRequest] = deque()  # those whose crops are not here yet

    def __iter__(self) -> Iterator[list[tuple[int, Boxes]]]:
        for request in self.requests:
            self.waiting.append(request)
            count = len(request.rows)
            # Plain numbers, not tensors: each tensor would go to the workers as a shared-memory file of its own.
            sides = [group.side for group in request.groups.values()]
            boxes = [group.boxes.view(count, -1, 4).tolist() for group in request.groups.values()]
            yield [
                (row, list(zip(sides, of_row, strict=True)))
                for row, *of_row in zip(request.rows.tolist(), *boxes, strict=True)
            ]


class PictureCrops(Dataset):
    """Worker side: decode a picture once, crop all its boxes, resize them antialiased."""

    def __init__(self, files: EncodedFiles, sizes: Tensor, pixels: PixelFormat, reading: Reading) -> None:
        self.files = files
        self.sizes = sizes
        self.pixels = pixels
        self.filter = RESAMPLE[reading.filter]
        self.center = reading.center
        self.cache = reading.cache

    def __getitem__(self, item: tuple[int, Boxes]) -> list[np.ndarray] | str:
        """Crops per group, V×C×S×S; or what is wrong with the file."""
        row, groups = item
        needed = max(side / max(1, min(box[2:])) for side, boxes in groups for box in boxes)
        try:
            return self._crops(row, MARGIN * needed, groups)
        except OSError as error:
            return f"{self.files.name(row)}: {error}"

    def _crops(self, row: int, shrink: float, groups: Boxes) -> list[np.ndarray]:
        if self.center:  # of the image as it was decoded, which is larger than needed
            ((side, _),) = groups
            image = decode_picture(self.files.content(row), least=least_side(side, self.center))
            size = [image.height, image.width]
            groups = [(side, center_boxes(torch.tensor([size]), self.center).tolist())]
        else:
            image, size = self._decode(row, shrink), self.sizes[row].tolist()
        scale = image.height / size[0], image.width / size[1]
        return [
            np.stack([self._crop(image, box, scale, side).transpose(2, 0, 1) for box in boxes])
            for side, boxes in groups
        ]

    def _decode(self, row: int, shrink: float) -> Image.Image:
        stamp = self.files.stamp(row) if self.cache is not None else None
        if self.cache is None or stamp is None:
            return decode_picture(self.files.content(row), shrink)
        return self.cache.decoded(
            stamp, self.sizes[row].tolist(), shrink, lambda: decode_picture(self.files.content(row), shrink)
        )

    def _crop(self, image: Image.Image, box: list[int], scale: tuple[float, float], side: int) -> np.ndarray:
        y0, x0 = box[0] * scale[0], box[1] * scale[1]
        y1, x1 = y0 + box[2] * scale[0], x0 + box[3] * scale[1]
        # Cropped before resizing, so that no pixel outside of the box contributes at its edges.
        left, top = math.floor(x0), math.floor(y0)
        part = image.crop((left, top, min(math.ceil(x1), image.width), min(math.ceil(y1), image.height)))
        x1, y1 = min(x1, image.width), min(y1, image.height)
        return np.asarray(part.resize((side, side), self.filter, box=(x0 - left, y0 - top, x1 - left, y1 - top)))


class ArrayCrops(PictureCrops):
    """The same of images of other channels or types of values, channel by channel, as floats."""

    def _crops(self, row: int, shrink: float, groups: Boxes) -> list[np.ndarray]:
        pixels = self._pixels(row)
        channels = [Image.fromarray(np.ascontiguousarray(c, np.float32)) for c in np.moveaxis(pixels, 2, 0)]
        crops = [
            np.stack([[self._crop(channel, box, (1.0, 1.0), side) for channel in channels] for box in boxes])
            for side, boxes in groups
        ]
        bounds = LIMITS[self.pixels.depth] if self.pixels.depth != "float32" else None
        return [of_group if bounds is None else of_group.clip(*bounds) for of_group in crops]  # cubic filters overshoot

    def _pixels(self, row: int) -> np.ndarray:
        stamp = self.files.stamp(row) if self.cache is not None else None
        if self.cache is None or stamp is None or is_raw(self.files.name(row)):
            return read_pixels(self.files.content(row), self.pixels)
        return self.cache.pixels(
            stamp, self.sizes[row].tolist(), self.pixels, lambda: read_pixels(self.files.content(row), self.pixels)
        )


def _collate(items: list[list[np.ndarray] | str]) -> tuple[list[Tensor], Tensor, list[str]]:
    """Crops of the readable files, per group N×V×C×S×S; which of the batch they are; errors of the others."""
    good = [item for item in items if not isinstance(item, str)]
    readable = torch.tensor([not isinstance(item, str) for item in items])
    crops = [torch.from_numpy(np.stack(group)) for group in zip(*good, strict=True)]
    return crops, readable, [item for item in items if isinstance(item, str)]
