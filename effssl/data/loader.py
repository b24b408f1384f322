"""From a set of images to batches of views, the same whatever the number of workers."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from effssl import augment
from effssl.augment.crop import boxes, center_boxes
from effssl.augment.rotate import rotate_quarters
from effssl.config import Augment
from effssl.data.folder import decode
from effssl.data.sets import ArrayImages, FolderImages, Images
from effssl.data.views import Needs, Views
from effssl.errors import RequestError
from effssl.progress import say
from effssl.randomness import generator

MARGIN = 2  # a JPEG is decoded at no less than twice the size that is needed, so that antialiasing stays ours
RESAMPLE = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


CLEAN = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0), "jitter": 0.0, "gray": 0.0, "blur": (0.0,), "solarize": (0.0,)}


@dataclass(frozen=True)
class Kind:
    """Views that are made alike: how many, by which pipeline, how large."""

    name: str
    count: int
    config: Augment
    size: int


def kinds_of_views(needs: Needs, config: Augment, size: int) -> list[Kind]:
    """What has to be made of each image; the name also names the random stream, so no kind disturbs another."""
    kinds = [Kind("view", needs.large, config, size)]
    if needs.small and config.small:
        kinds.append(Kind("small", config.small, replace(config, scale=config.small_scale), config.small_size))
    if needs.clean:
        kinds.append(Kind("clean", 1, replace(config, **CLEAN), size))  # type: ignore[arg-type]
    return kinds


class ViewLoader:
    """Batches of random views, every draw named by (seed, purpose, step)."""

    def __init__(
        self,
        images: Images,
        config: Augment,
        needs: Needs,
        batch_size: int,
        size: int,
        seed: int,
        device: torch.device,
        workers: int = -1,
    ) -> None:
        self.images, self.config, self.batch_size, self.seed, self.device = images, config, batch_size, seed, device
        self.kinds = kinds_of_views(needs, config, size)
        self.workers = (os.cpu_count() or 1) if workers < 0 else workers
        self.steps = len(images) // batch_size  # the last partial batch is dropped
        self._pixels = images.pixels.to(device) if isinstance(images, ArrayImages) else None

    def order(self, epoch: int) -> Tensor:
        """The images of an epoch, shuffled."""
        return torch.randperm(len(self.images), generator=generator(self.seed, "order", epoch))

    def draws(self, kind: Kind, step: int) -> list[augment.Draws]:
        """The parameters of every view of a kind in a step."""
        return [
            augment.draw(kind.config, self.batch_size, view, generator(self.seed, kind.name, view, step))
            for view in range(kind.count)
        ]

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Views]:
        """The batches of an epoch from its `first`-th step on."""
        rows = self.order(epoch)[: self.steps * self.batch_size].view(self.steps, self.batch_size)
        numbers = range(first, self.steps)
        if self._pixels is not None:
            for i in numbers:
                pixels = self._pixels[rows[i].to(self.device, non_blocking=True)]
                sources = [[pixels] * kind.count for kind in self.kinds]
                yield self._views(epoch * self.steps + i, rows[i], sources, cropped=False)
            return
        assert isinstance(self.images, FolderImages)
        crops = _CropFiles(self.images, [kind.size for kind in self.kinds], self.config.filter)
        plan = [(rows[i], self._boxes(epoch * self.steps + i, rows[i])) for i in numbers]
        for i, (pixels_by_kind, readable) in zip(numbers, decoded(crops, plan, self.workers), strict=True):
            # In place of a file that cannot be decoded stands its nearest readable predecessor in the batch.
            filled = (readable.cumsum(0) - 1).clamp(min=0)
            sources = [list(p[filled].to(self.device, non_blocking=True).unbind(1)) for p in pixels_by_kind]
            yield self._views(epoch * self.steps + i, rows[i], sources, cropped=True)

    def _boxes(self, step: int, rows: Tensor) -> list[Tensor]:
        """Crop boxes of a step, one B×count×4 tensor per kind."""
        assert isinstance(self.images, FolderImages)
        sizes = self.images.sizes[rows]
        return [
            torch.stack([boxes(sizes, draws.box, kind.config.ratio) for draws in self.draws(kind, step)], 1)
            for kind in self.kinds
        ]

    def _views(self, step: int, rows: Tensor, sources: list[list[Tensor]], cropped: bool) -> Views:
        made: dict[str, list[Tensor]] = {}
        for kind, pixels in zip(self.kinds, sources, strict=True):
            views = [
                augment.apply(kind.config, part, draws, kind.size, cropped)
                for part, draws in zip(pixels, self.draws(kind, step), strict=True)
            ]
            made[kind.name] = [view.contiguous(memory_format=torch.channels_last) for view in views]
        angle = None
        if self.config.rotate:
            turns = torch.randint(4, (len(made["view"]), len(rows)), generator=generator(self.seed, "turns", step))
            made["view"] = [rotate_quarters(view, t) for view, t in zip(made["view"], turns, strict=True)]
            angle = turns.reshape(-1)
        return Views(
            made["view"],
            rows,
            small=made.get("small", []),
            clean=made["clean"][0] if "clean" in made else None,
            angle=angle,
            seed=self.seed,
            step=step,
            total=self.batch_size,
        )


class _CropFiles(Dataset):
    """Worker side: decode a file once, cut all its boxes, resize them antialiased. Workers draw nothing."""

    def __init__(self, images: FolderImages, sizes: list[int], filter: str = "bilinear") -> None:
        self.paths = np.array([os.fsencode(path) for path in images.paths])  # one buffer, not a list copied on fork
        self.shown, self.sizes, self.filter = images.sizes, sizes, RESAMPLE[filter]

    def __getitem__(self, item: tuple[int, list[list[list[int]]]]) -> list[np.ndarray] | str:
        row, cuts = item  # cuts: per kind of view its boxes of top, left, height, width
        path = os.fsdecode(self.paths[row])
        try:
            need = (size / max(1, min(box[2:])) for size, kind in zip(self.sizes, cuts, strict=True) for box in kind)
            image = decode(Path(path), MARGIN * max(need))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            return f"{path}: {error}"
        scale = image.height / int(self.shown[row, 0]), image.width / int(self.shown[row, 1])
        return [
            np.stack([self._cut(image, box, scale, size) for box in kind])
            for size, kind in zip(self.sizes, cuts, strict=True)
        ]

    def _cut(self, image: Image.Image, box: list[int], scale: tuple[float, float], size: int) -> np.ndarray:
        y0, x0 = box[0] * scale[0], box[1] * scale[1]
        y1, x1 = y0 + box[2] * scale[0], x0 + box[3] * scale[1]
        # Cropped before resizing, so that nothing outside of the box seeps in at its edges.
        left, top = math.floor(x0), math.floor(y0)
        part = image.crop((left, top, math.ceil(x1), math.ceil(y1)))
        view = part.resize((size, size), self.filter, box=(x0 - left, y0 - top, x1 - left, y1 - top))
        return np.asarray(view).transpose(2, 0, 1)


def _collate(items: list[list[np.ndarray] | str]) -> tuple[list[Tensor], Tensor, list[str]]:
    """Crops of the readable files, per kind B'×count×3×S×S; which of the batch they are; what went wrong elsewhere."""
    good = [item for item in items if not isinstance(item, str)]
    readable = torch.tensor([not isinstance(item, str) for item in items])
    crops = [torch.from_numpy(np.stack(kind)) for kind in zip(*good, strict=True)]
    return crops, readable, [item for item in items if isinstance(item, str)]


def decoded(
    crops: _CropFiles, plan: list[tuple[Tensor, list[Tensor]]], workers: int
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Run a plan of (rows, boxes) through worker processes, in order: crops of readable files, and which they are."""
    # Plain numbers, not tensors: those would travel to the workers as one shared-memory file each.
    sampler = [
        [(row, list(cuts)) for row, *cuts in zip(rows.tolist(), *(kind.tolist() for kind in boxes), strict=True)]
        for rows, boxes in plan
    ]
    loader: DataLoader = DataLoader(crops, batch_sampler=sampler, num_workers=workers, collate_fn=_collate)
    reported: set[str] = set()
    for pixels, readable, failed in loader:
        for line in sorted(set(failed) - reported):
            say(f"left out, cannot be decoded: {line}")
        reported.update(failed)
        if not pixels:
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
    plan = [(part, [center_boxes(images.sizes[part], share)[:, None]]) for part in rows]
    workers = (os.cpu_count() or 1) if workers < 0 else workers
    for part, (pixels, readable) in zip(rows, decoded(_CropFiles(images, [size]), plan, workers), strict=True):
        yield pixels[0][:, 0], part[readable]
