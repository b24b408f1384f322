"""Files become pixels in worker processes, in order; workers draw nothing at random."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from effssl.data.folder import decode
from effssl.data.sets import FolderImages
from effssl.runtime.processes import die_with_parent
from effssl.runtime.progress import say

FORK = "fork" if sys.platform == "linux" else None  # workers are children of the run, whose end they share
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
MARGIN = 2  # a JPEG is decoded at no less than twice the size that is needed, so that antialiasing stays ours
RESAMPLE = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def begin_worker(_: int, parent: int) -> None:
    """Signals are for the main process to decide about: workers leave its group, and die with it."""
    os.setpgid(0, 0)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # one that came meanwhile is forgotten
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the main process's way to end a worker
    die_with_parent(parent)


def started(loader: DataLoader) -> Iterator[Any]:
    """Start a loader's workers; a signal to the group waits until they have left it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class CropFiles(Dataset):
    """Worker side: decode a file once, cut all its boxes, resize them antialiased. Workers draw nothing."""

    def __init__(self, images: FolderImages, filter: str = "bilinear") -> None:
        self.paths = np.array([os.fsencode(path) for path in images.paths])  # one buffer, not a list copied on fork
        self.shown, self.filter = images.sizes, RESAMPLE[filter]

    def __getitem__(self, item: tuple[int, list[int], list[list[list[int]]]]) -> list[np.ndarray] | str:
        row, sizes, cuts = item  # per kind of view its side, and its boxes of top, left, height, width
        path = os.fsdecode(self.paths[row])
        try:
            need = (size / max(1, min(box[2:])) for size, kind in zip(sizes, cuts, strict=True) for box in kind)
            image = decode(Path(path), MARGIN * max(need))
        except OSError as error:
            return f"{path}: {error}"
        scale = image.height / int(self.shown[row, 0]), image.width / int(self.shown[row, 1])
        return [
            np.stack([self._cut(image, box, scale, size) for box in kind])
            for size, kind in zip(sizes, cuts, strict=True)
        ]

    def _cut(self, image: Image.Image, box: list[int], scale: tuple[float, float], size: int) -> np.ndarray:
        y0, x0 = box[0] * scale[0], box[1] * scale[1]
        y1, x1 = y0 + box[2] * scale[0], x0 + box[3] * scale[1]
        # Cropped before resizing, so that nothing outside of the box seeps in at its edges.
        left, top = math.floor(x0), math.floor(y0)
        part = image.crop((left, top, min(math.ceil(x1), image.width), min(math.ceil(y1), image.height)))
        x1, y1 = min(x1, image.width), min(y1, image.height)
        view = part.resize((size, size), self.filter, box=(x0 - left, y0 - top, x1 - left, y1 - top))
        return np.asarray(view).transpose(2, 0, 1)


def _collate(items: list[list[np.ndarray] | str]) -> tuple[list[Tensor], Tensor, list[str]]:
    """Crops of the readable files, per kind B'×count×3×S×S; which of the batch they are; what went wrong elsewhere."""
    good = [item for item in items if not isinstance(item, str)]
    readable = torch.tensor([not isinstance(item, str) for item in items])
    crops = [torch.from_numpy(np.stack(kind)) for kind in zip(*good, strict=True)]
    return crops, readable, [item for item in items if isinstance(item, str)]


class _Plan:
    """What the workers are to cut, made batch by batch as they ask: an epoch's boxes are never all in memory."""

    def __init__(self, batches: Iterable[tuple[Tensor, list[int], list[Tensor]]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[tuple[int, list[int], list]]]:
        for rows, sizes, boxes in self.batches:
            # Plain numbers, not tensors: those would travel to the workers as one shared-memory file each.
            cuts = (b.tolist() for b in boxes)
            yield [(row, sizes, list(of_row)) for row, *of_row in zip(rows.tolist(), *cuts, strict=True)]


def decoded(
    files: CropFiles, plan: Iterable[tuple[Tensor, list[int], list[Tensor]]], workers: int
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Run a plan of (rows, sizes, boxes) through workers, in order: crops of readable files, and which they are."""
    loader: DataLoader = DataLoader(
        files,
        multiprocessing_context=FORK if workers else None,
        batch_sampler=_Plan(plan),
        num_workers=workers,
        collate_fn=_collate,
        worker_init_fn=partial(begin_worker, parent=os.getpid()),
    )
    reported: set[str] = set()
    for pixels, readable, failed in started(loader):
        for line in sorted(set(failed) - reported):
            say(f"left out, cannot be decoded: {line}")
        reported.update(failed)
        yield pixels, readable
