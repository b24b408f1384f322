"""From a set of images to batches of views, the same whatever the number of workers."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from effssl import augment
from effssl.augment.crop import boxes as crop_boxes
from effssl.augment.crop import padded_boxes
from effssl.augment.rotate import rotate_quarters
from effssl.config import Augment
from effssl.data.folder import decode
from effssl.data.saliency import SaliencyMaps
from effssl.data.sets import ArrayImages, FolderImages, Images
from effssl.data.views import Needs, Views
from effssl.errors import RequestError
from effssl.progress import say
from effssl.randomness import generator


def begin_worker(_: int, parent: int) -> None:
    """A Ctrl-C reaches all workers, but the main process decides what to do about it; and they die with it."""
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed while this worker started: torch would take init for the parent
        os._exit(1)


PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal a process gets when its parent dies
MARGIN = 2  # a JPEG is decoded at no less than twice the size that is needed, so that antialiasing stays ours
RESAMPLE = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


CLEAN = {
    "pad": 0,
    "scale": (1.0, 1.0),
    "ratio": (1.0, 1.0),
    "jitter": 0.0,
    "gray": 0.0,
    "blur": (0.0,),
    "solarize": (0.0,),
}


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
        kinds.append(Kind("small", config.small, replace(config, scale=config.small_scale, pad=0), config.small_size))
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
        keep_partial: bool = False,
        rows: slice = slice(None),
    ) -> None:
        """`rows` are those of each batch that this process makes; parameters are drawn for the whole batch."""
        self.images, self.config, self.batch_size, self.seed, self.device = images, config, batch_size, seed, device
        self.rows = rows
        self.kinds = kinds_of_views(needs, config, size)
        self.workers = (os.cpu_count() or 1) if workers < 0 else workers
        # Pretraining drops the last partial batch, so that every step compares as many images.
        self.steps = -(-len(images) // batch_size) if keep_partial else len(images) // batch_size
        self._pixels = images.pixels.to(device) if isinstance(images, ArrayImages) else None
        self._size = torch.tensor(images.pixels.shape[-2:] if isinstance(images, ArrayImages) else (0, 0))
        if config.pad and isinstance(images, FolderImages):
            raise RequestError("augment.pad is for small images of one size; photographs take resized crops")
        self.saliency = SaliencyMaps.open(config.saliency, images) if config.saliency else None

    def order(self, epoch: int) -> Tensor:
        """The images of an epoch, shuffled."""
        return torch.randperm(len(self.images), generator=generator(self.seed, "order", epoch))

    def draws(self, step: int, count: int | None = None) -> list[list[augment.Draws]]:
        """The parameters of every view of a step, per kind; those of the first `count` images of a partial batch."""
        return [
            [
                augment.draw(kind.config, self.batch_size, view, generator(self.seed, kind.name, view, step))[
                    self.rows
                ][:count]
                for view in range(kind.count)
            ]
            for kind in self.kinds
        ]

    def boxes(self, kind: Kind, view: int, draws: augment.Draws, step: int, rows: Tensor) -> Tensor:
        """Crop boxes of the `view`-th view in a step, B×4; chosen by saliency where the run says so."""
        sizes = self.images.sizes[rows] if isinstance(self.images, FolderImages) else self._size.expand(len(rows), 2)
        if kind.config.pad:
            return padded_boxes(sizes, draws.box[:, 0], kind.config.pad)
        tries = [crop_boxes(sizes, numbers, kind.config.ratio) for numbers in draws.box.unbind(1)]
        if self.saliency is None or kind.name != "view":
            return tries[0]
        return self.saliency.choose(rows, sizes, tries, self._good_crops(step, view, rows))

    def _good_crops(self, step: int, view: int, rows: Tensor) -> Tensor:
        """Which samples, crops or images have their boxes chosen by saliency, B booleans."""
        if self.config.saliency_by == "image":
            drawn = torch.rand(len(self.images), generator=generator(self.seed, "good images"))[rows]
        else:
            purpose = ("good crops", step, view) if self.config.saliency_by == "crop" else ("good crops", step)
            drawn = torch.rand(self.batch_size, generator=generator(self.seed, *purpose))
            drawn = drawn[self.rows]
        return drawn < self.config.saliency_share

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Views]:
        """The batches of an epoch from its `first`-th step on."""
        rows = [batch[self.rows] for batch in self.order(epoch).split(self.batch_size)[: self.steps]]
        steps = range(epoch * self.steps + first, (epoch + 1) * self.steps)
        make = self._from_memory if self._pixels is not None else self._from_files
        yield from make(steps, rows[first:])

    def _from_memory(self, steps: range, rows: Sequence[Tensor]) -> Iterator[Views]:
        assert self._pixels is not None
        for step, index in zip(steps, rows, strict=True):
            pixels, draws = self._pixels[index.to(self.device, non_blocking=True)], self.draws(step, len(index))
            crops = [
                [
                    augment.cut(kind.config, pixels, self.boxes(kind, view, d, step, index), d, kind.size)
                    for view, d in enumerate(of_kind)
                ]
                for kind, of_kind in zip(self.kinds, draws, strict=True)
            ]
            yield self._views(step, index, crops, draws)

    def _from_files(self, steps: range, rows: Sequence[Tensor]) -> Iterator[Views]:
        assert isinstance(self.images, FolderImages)
        files = _CropFiles(self.images, [kind.size for kind in self.kinds], self.config.filter)
        plan = ((index, self._file_boxes(step, index)) for step, index in zip(steps, rows, strict=True))
        cut = decoded(files, plan, self.workers)
        for step, index, (pixels, readable) in zip(steps, rows, cut, strict=True):
            # In place of a file that cannot be decoded stands its nearest readable predecessor in the batch.
            if not pixels:
                raise RequestError(f"none of the {len(index)} images of a batch can be decoded")
            filled, draws = (readable.cumsum(0) - 1).clamp(min=0), self.draws(step, len(index))
            index = index[readable][filled]
            uploaded = [p[filled].to(self.device, non_blocking=True).unbind(1) for p in pixels]
            crops = [
                [augment.flip(x, d) for x, d in zip(*one, strict=True)] for one in zip(uploaded, draws, strict=True)
            ]
            yield self._views(step, index, crops, draws)

    def _file_boxes(self, step: int, index: Tensor) -> list[Tensor]:
        """All boxes of a step, one B×count×4 tensor per kind."""
        return [
            torch.stack([self.boxes(kind, view, d, step, index) for view, d in enumerate(of_kind)], 1)
            for kind, of_kind in zip(self.kinds, self.draws(step, len(index)), strict=True)
        ]

    def _views(self, step: int, rows: Tensor, crops: list[list[Tensor]], draws: list[list[augment.Draws]]) -> Views:
        made: dict[str, list[Tensor]] = {}
        for kind, views, of_kind in zip(self.kinds, crops, draws, strict=True):
            done = [augment.recolor(kind.config, x, d) for x, d in zip(views, of_kind, strict=True)]
            made[kind.name] = [view.contiguous(memory_format=torch.channels_last) for view in done]
        angle = None
        if self.config.rotate:
            g = generator(self.seed, "turns", step)
            turns = torch.randint(4, (len(made["view"]), self.batch_size), generator=g)[:, self.rows]
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
            rows=self.rows,
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

    def __init__(self, batches: Iterable[tuple[Tensor, list[Tensor]]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[tuple[int, list]]]:
        for rows, boxes in self.batches:
            # Plain numbers, not tensors: those would travel to the workers as one shared-memory file each.
            yield [(row, list(cuts)) for row, *cuts in zip(rows.tolist(), *(b.tolist() for b in boxes), strict=True)]


def decoded(
    files: _CropFiles, plan: Iterable[tuple[Tensor, list[Tensor]]], workers: int
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Run a plan of (rows, boxes) through worker processes, in order: crops of readable files, and which they are."""
    loader: DataLoader = DataLoader(
        files,
        batch_sampler=_Plan(plan),
        num_workers=workers,
        collate_fn=_collate,
        worker_init_fn=partial(begin_worker, parent=os.getpid()),
    )
    reported: set[str] = set()
    for pixels, readable, failed in loader:
        for line in sorted(set(failed) - reported):
            say(f"left out, cannot be decoded: {line}")
        reported.update(failed)
        yield pixels, readable


def whole_boxes(sizes: Tensor) -> Tensor:
    """Boxes that hold all of each image, N×4."""
    return torch.cat([torch.zeros_like(sizes), sizes], 1)


def clean_batches(
    images: Images, size: int, box: Callable[[Tensor], Tensor], batch: int, workers: int = -1, filter: str = "bilinear"
) -> Iterator[tuple[Tensor, Tensor]]:
    """All images in order, uint8, with their rows: files cut to `box(sizes)` at size×size, arrays as they are."""
    rows = torch.arange(len(images)).split(batch)
    if isinstance(images, ArrayImages):
        yield from ((images.pixels[part[0] : part[-1] + 1], part) for part in rows)  # resized later, on the device
        return
    plan = [(part, [box(images.sizes[part])[:, None]]) for part in rows]
    workers = (os.cpu_count() or 1) if workers < 0 else workers
    for part, (pixels, readable) in zip(rows, decoded(_CropFiles(images, [size], filter), plan, workers), strict=True):
        if pixels:
            yield pixels[0][:, 0], part[readable]
