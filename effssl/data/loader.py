"""From a set of images to batches of views, the same whatever the number of workers."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from effssl import augment
from effssl.augment.crop import boxes, center_boxes
from effssl.config import Augment
from effssl.data.folder import decode
from effssl.data.sets import ArrayImages, FolderImages, Images
from effssl.errors import RequestError
from effssl.progress import say
from effssl.randomness import generator

MARGIN = 2  # a JPEG is decoded at no less than twice the size that is needed, so that antialiasing stays ours
RESAMPLE = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True)
class Batch:
    """Views of one batch."""

    step: int
    index: Tensor  # B rows of the data set
    large: list[Tensor]  # B×3×S×S each, normalized, on the training device


class ViewLoader:
    """Batches of `views` random views per image, every draw named by (seed, purpose, step)."""

    def __init__(
        self,
        images: Images,
        config: Augment,
        views: int,
        batch_size: int,
        size: int,
        seed: int,
        device: torch.device,
        workers: int = -1,
    ) -> None:
        self.images, self.config, self.views, self.batch_size = images, config, views, batch_size
        self.size, self.seed, self.device = size, seed, device
        self.workers = (os.cpu_count() or 1) if workers < 0 else workers
        self.steps = len(images) // batch_size  # the last partial batch is dropped
        self._pixels = images.pixels.to(device) if isinstance(images, ArrayImages) else None

    def order(self, epoch: int) -> Tensor:
        """The images of an epoch, shuffled."""
        return torch.randperm(len(self.images), generator=generator(self.seed, "order", epoch))

    def draws(self, step: int) -> list[augment.Draws]:
        """The parameters of every view of a step."""
        return [
            augment.draw(self.config, self.batch_size, view, generator(self.seed, "view", view, step))
            for view in range(self.views)
        ]

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from its `first`-th step on."""
        rows = self.order(epoch)[: self.steps * self.batch_size].view(self.steps, self.batch_size)
        numbers = range(first, self.steps)
        if self._pixels is not None:
            for i in numbers:
                pixels = self._pixels[rows[i].to(self.device, non_blocking=True)]
                yield self._batch(epoch, i, rows[i], [pixels] * self.views, cropped=False)
            return
        assert isinstance(self.images, FolderImages)
        plan = [(rows[i], self._boxes(epoch, i, rows[i])) for i in numbers]
        crops = _CropFiles(self.images, self.size, self.config.filter)
        for i, (pixels, readable) in zip(numbers, decoded(crops, plan, self.workers), strict=True):
            # In place of a file that cannot be decoded stands its nearest readable predecessor in the batch.
            pixels = pixels[(readable.cumsum(0) - 1).clamp(min=0)]
            pixels = pixels.to(self.device, non_blocking=True)  # B×V×3×S×S
            yield self._batch(epoch, i, rows[i], list(pixels.unbind(1)), cropped=True)

    def _boxes(self, epoch: int, i: int, rows: Tensor) -> Tensor:
        assert isinstance(self.images, FolderImages)
        sizes = self.images.sizes[rows]
        return torch.stack([boxes(sizes, d.box, self.config.ratio) for d in self.draws(epoch * self.steps + i)], 1)

    def _batch(self, epoch: int, i: int, rows: Tensor, pixels: list[Tensor], cropped: bool) -> Batch:
        step = epoch * self.steps + i
        views = [
            augment.apply(self.config, part, draws, self.size, cropped)
            for part, draws in zip(pixels, self.draws(step), strict=True)
        ]
        return Batch(step, rows, [v.contiguous(memory_format=torch.channels_last) for v in views])


class _CropFiles(Dataset):
    """Worker side: decode a file once, cut all its boxes, resize them antialiased. Workers draw nothing."""

    def __init__(self, images: FolderImages, size: int, filter: str = "bilinear") -> None:
        self.paths = np.array([os.fsencode(path) for path in images.paths])  # one buffer, not a list copied on fork
        self.sizes, self.size, self.filter = images.sizes, size, filter

    def __getitem__(self, item: tuple[int, list[list[int]]]) -> np.ndarray | str:
        row, cuts = item  # cuts: V boxes of top, left, height, width
        path = os.fsdecode(self.paths[row])
        try:
            image = decode(Path(path), MARGIN * self.size / max(1, min(min(cut[2:]) for cut in cuts)))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            return f"{path}: {error}"
        scale_y, scale_x = image.height / int(self.sizes[row, 0]), image.width / int(self.sizes[row, 1])
        out = np.empty((len(cuts), 3, self.size, self.size), np.uint8)
        for i, (top, left, height, width) in enumerate(cuts):
            x0, y0, x1, y1 = left * scale_x, top * scale_y, (left + width) * scale_x, (top + height) * scale_y
            # Cropped before resizing, so that nothing outside of the box seeps in at its edges.
            part = image.crop((math.floor(x0), math.floor(y0), math.ceil(x1), math.ceil(y1)))
            box = (x0 - math.floor(x0), y0 - math.floor(y0), x1 - math.floor(x0), y1 - math.floor(y0))
            view = part.resize((self.size, self.size), RESAMPLE[self.filter], box=box)
            out[i] = np.asarray(view).transpose(2, 0, 1)
        return out


def _collate(items: list[np.ndarray | str]) -> tuple[Tensor, Tensor, list[str]]:
    """Crops of the readable files, B'×V×3×S×S; which of the batch they are, B booleans; what went wrong elsewhere."""
    good = [item for item in items if not isinstance(item, str)]
    readable = torch.tensor([not isinstance(item, str) for item in items])
    return (
        torch.from_numpy(np.stack(good)) if good else torch.empty(0),
        readable,
        [i for i in items if isinstance(i, str)],
    )


def decoded(crops: _CropFiles, plan: list[tuple[Tensor, Tensor]], workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Run a plan of (rows, boxes) through worker processes, in order: crops of readable files, and which they are."""
    # Plain numbers, not tensors: those would travel to the workers as one shared-memory file each.
    sampler = [list(zip(rows.tolist(), cuts.tolist(), strict=True)) for rows, cuts in plan]
    loader: DataLoader = DataLoader(crops, batch_sampler=sampler, num_workers=workers, collate_fn=_collate)
    reported: set[str] = set()
    for pixels, readable, failed in loader:
        for line in sorted(set(failed) - reported):
            say(f"left out, cannot be decoded: {line}")
        reported.update(failed)
        if not len(pixels):
            raise RequestError(f"none of the images of a batch can be decoded, e.g. {failed[0]}")
        yield pixels, readable


def clean_batches(
    images: Images, size: int, share: float, batch: int, workers: int = -1
) -> Iterator[tuple[Tensor, Tensor]]:
    """All images in order under the test transform, uint8, with their rows: the center `share` at size×size."""
    rows = torch.arange(len(images)).split(batch)
    if isinstance(images, ArrayImages):
        yield from ((images.pixels[part[0] : part[-1] + 1], part) for part in rows)  # resized later, on the device
        return
    plan = [(part, center_boxes(images.sizes[part], share)[:, None]) for part in rows]
    workers = (os.cpu_count() or 1) if workers < 0 else workers
    for part, (pixels, readable) in zip(rows, decoded(_CropFiles(images, size), plan, workers), strict=True):
        yield pixels[:, 0], part[readable]
