"""From a set of images to batches of views, the same whatever the number of workers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from effssl import augment
from effssl.augment.crop import boxes as crop_boxes
from effssl.augment.crop import crop_resize, padded_boxes
from effssl.augment.rotate import rotate_quarters
from effssl.config import Augment
from effssl.data.decoding import CropFiles, decoded
from effssl.data.saliency import SaliencyMaps
from effssl.data.sets import ArrayImages, FolderImages, Images, PackedImages
from effssl.data.views import Needs, Views
from effssl.runtime.errors import RequestError
from effssl.runtime.randomness import generator

T = TypeVar("T")
DRAWN = 1 << 12  # images whose views' parameters are drawn at a time
AT_A_TIME = 1 << 24  # numbers of images in memory that are cut at a time
AT_ONCE = 32  # images of a pack that are cut at a time: as floats a batch of photographs takes much memory
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
    kinds = [Kind("view", needs.large, config, size)] if needs.large else []
    if needs.small and config.small:
        kinds.append(Kind("small", config.small, replace(config, scale=config.small_scale, pad=0), config.small_size))
    if needs.own is not None:
        kinds.append(Kind("own", needs.own.count, replace(config, scale=needs.own.scale, pad=0), needs.own.size))
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
        compiled: bool = False,
        done: Callable[[int], float] = lambda step: 0.0,
        grow: Callable[[float], int] | None = None,
    ) -> None:
        """`rows` are those of each batch that this process makes; parameters are drawn for the whole batch.

        `done` tells the share of the run before a step, and `grow` the side of the large views at that point.
        """
        self.images, self.config, self.batch_size, self.seed, self.device = images, config, batch_size, seed, device
        self.rows, self.compiled, self.done, self.grow = rows, compiled, done, grow
        self.kinds = kinds_of_views(needs, config, size)
        self.workers = (os.cpu_count() or 1) if workers < 0 else workers
        # Pretraining drops the last partial batch, so that every step compares as many images.
        self.steps = -(-len(images) // batch_size) if keep_partial else len(images) // batch_size
        self._pixels = images.pixels.to(device) if isinstance(images, ArrayImages) else None
        if config.pad and not isinstance(images, ArrayImages):
            raise RequestError("augment.pad is for small images of one size; photographs take resized crops")
        self.saliency = SaliencyMaps.open(config.saliency, images) if config.saliency else None

    def order(self, epoch: int) -> Tensor:
        """The images of an epoch, shuffled."""
        return torch.randperm(len(self.images), generator=generator(self.seed, "order", epoch))

    def sides(self, step: int) -> list[int]:
        """How large the views of each kind are in a step."""
        return [self.grow(self.done(step)) if self.grow and kind.name == "view" else kind.size for kind in self.kinds]

    def draws(self, steps: Sequence[int], count: int | None = None) -> list[augment.Draws]:
        """The parameters of all views of some steps, per kind; of a partial batch this process has `count` images."""
        first, end, _ = self.rows.indices(self.batch_size)
        rows = slice(first, end if count is None else first + count)

        def named(kind: Kind) -> list[torch.Generator]:
            return [generator(self.seed, kind.name, step) for step in steps]

        return [augment.draw(kind.config, self.batch_size, kind.count, named(kind), rows) for kind in self.kinds]

    def boxes(self, kind: Kind, draws: augment.Draws, steps: Sequence[int], rows: Tensor) -> Tensor:
        """Crop boxes of a kind, SBV×4 for S steps of B images, V views each; chosen by saliency where a run says so."""
        rows = rows[:, None].expand(-1, kind.count).reshape(-1)
        sizes = self.images.sizes.index_select(0, rows)
        if kind.config.pad:
            return padded_boxes(sizes, draws.box[:, 0], kind.config.pad)
        tries = [crop_boxes(sizes, numbers, kind.config.ratio) for numbers in draws.box.unbind(1)]
        if self.saliency is None or kind.name != "view":
            return tries[0]
        return self.saliency.choose(rows, sizes, tries, self._good_crops(kind, steps, rows))

    def _good_crops(self, kind: Kind, steps: Sequence[int], rows: Tensor) -> Tensor:
        """Which samples, crops or images have their boxes chosen by saliency, SBV booleans as above."""
        if self.config.saliency_by == "image":
            drawn = torch.rand(len(self.images), generator=generator(self.seed, "good images"))[rows]
        else:
            crops = kind.count if self.config.saliency_by == "crop" else 1
            each = [torch.rand(crops, self.batch_size, generator=generator(self.seed, "good crops", s)) for s in steps]
            count = len(rows) // len(steps)
            drawn = torch.cat([u.T[self.rows].expand(-1, kind.count).reshape(-1)[:count] for u in each])
        return drawn < self.config.saliency_share

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Views]:
        """The batches of an epoch from its `first`-th step on."""
        rows = [batch[self.rows] for batch in self.order(epoch).split(self.batch_size)[: self.steps]]
        steps = range(epoch * self.steps + first, (epoch + 1) * self.steps)
        make = self._from_files if isinstance(self.images, FolderImages) else self._from_pixels
        yield from make(steps, rows[first:])

    def _from_pixels(self, steps: range, rows: Sequence[Tensor]) -> Iterator[Views]:
        """Cut views out of whole images that lie in memory or in a pack."""
        together = AT_ONCE if self._pixels is None else max(AT_ONCE, AT_A_TIME // self._pixels[0].numel())
        drawn_boxes = self._drawn(steps, rows)
        for step, index, pixels, (draws, boxes) in zip(steps, rows, self._whole(rows), drawn_boxes, strict=True):
            crops = []
            for kind, side, drawn, box in zip(self.kinds, self.sides(step), draws, boxes, strict=True):
                views = together * kind.count
                parts = zip(pixels.split(together), box.split(views), drawn.flip.split(views), strict=True)
                cut = [augment.cut(kind.config, *part, side) for part in parts]
                crops.append(torch.cat(cut) if len(cut) > 1 else cut[0])
            yield self._views(step, index, crops, draws)

    def _drawn(self, steps: range, rows: Sequence[Tensor]) -> Iterator[tuple[list[augment.Draws], list[Tensor]]]:
        """All parameters and boxes of each step, per kind; many steps at a time take little longer than one."""
        start = 0
        while start < len(steps):
            stop, count = min(len(steps), start + max(1, DRAWN // self.batch_size)), len(rows[start])
            stop -= len(rows[stop - 1]) < count  # a partial batch, the last one, goes by itself
            some, index = steps[start:stop], torch.cat(list(rows[start:stop]))
            draws = self.draws(some, count)
            boxes = [self.boxes(kind, d, some, index) for kind, d in zip(self.kinds, draws, strict=True)]
            views = [count * kind.count for kind in self.kinds]
            # Boxes are made; the numbers that they were made from are many and not needed any more.
            draws = [replace(d, box=d.box.new_empty(len(d.box), 0)) for d in draws]
            parts = zip(*(d.split(n) for d, n in zip(draws, views, strict=True)), strict=True)
            cuts = zip(*(b.split(n) for b, n in zip(boxes, views, strict=True)), strict=True)
            yield from ((list(part), list(cut)) for part, cut in zip(parts, cuts, strict=True))
            start = stop

    def _whole(self, rows: Sequence[Tensor]) -> Iterable[Tensor]:
        """The whole images of each batch, B×3×H×W on the device; those of a pack are read one batch ahead."""
        if self._pixels is not None:
            # For bytes index_select is twenty times as fast as an index in brackets.
            return (self._pixels.index_select(0, index.to(self.device, non_blocking=True)) for index in rows)
        assert isinstance(self.images, PackedImages)
        return (self._upload(pixels) for pixels in ahead(map(self.images.read, rows)))

    def _from_files(self, steps: range, rows: Sequence[Tensor]) -> Iterator[Views]:
        """Let workers cut views out of files."""
        assert isinstance(self.images, FolderImages)
        files = CropFiles(self.images, self.config.filter)
        planned, used = itertools.tee(self._drawn(steps, rows))  # the workers are ahead
        plan = (
            (index, self.sides(step), [b.view(len(index), -1, 4) for b in boxes])
            for step, index, (_, boxes) in zip(steps, rows, planned, strict=True)
        )
        batches = decoded(files, plan, self.workers)
        for step, index, (pixels, readable), (draws, _) in zip(steps, rows, batches, used, strict=True):
            # In place of a file that cannot be decoded stands its nearest readable predecessor in the batch.
            if not pixels:
                raise RequestError(f"none of the {len(index)} images of a batch can be decoded")
            filled = (readable.cumsum(0) - 1).clamp(min=0)
            index = index[readable][filled]
            crops = [
                augment.flip(self._upload(cut[filled]), drawn.flip) for cut, drawn in zip(pixels, draws, strict=True)
            ]
            yield self._views(step, index, crops, draws)

    def _upload(self, x: Tensor) -> Tensor:
        """To the device; a GPU fetches pinned memory by itself while the CPU goes on."""
        return (x.pin_memory() if self.device.type == "cuda" else x).to(self.device, non_blocking=True)

    def _views(self, step: int, rows: Tensor, crops: list[Tensor], draws: list[augment.Draws]) -> Views:
        made: dict[str, list[Tensor]] = {}
        for kind, x, drawn in zip(self.kinds, crops, draws, strict=True):
            x = augment.recolor(kind.config, x, drawn, self.compiled).unflatten(2, (kind.count, -1))  # B×3×V×S×S
            made[kind.name] = [view.contiguous(memory_format=torch.channels_last) for view in x.unbind(2)]
        angle = None
        if self.config.rotate and "view" in made:
            g = generator(self.seed, "turns", step)
            turns = torch.randint(4, (len(made["view"]), self.batch_size), generator=g)[:, self.rows]
            made["view"] = [rotate_quarters(view, t) for view, t in zip(made["view"], turns, strict=True)]
            angle = turns.reshape(-1)
        return Views(
            made.get("view", []),
            rows,
            small=made.get("small", []),
            own=made.get("own", []),
            clean=made["clean"][0] if "clean" in made else None,
            angle=angle,
            seed=self.seed,
            step=step,
            done=self.done(step),
            total=self.batch_size,
            rows=self.rows,
        )


def ahead(items: Iterable[T]) -> Iterator[T]:
    """The same items, each made in a thread while the one before is in use."""
    coming = iter(items)
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(next, coming, None)
        while (item := made.result()) is not None:
            made = pool.submit(next, coming, None)
            yield item


def whole_boxes(sizes: Tensor) -> Tensor:
    """Boxes that hold all of each image, N×4."""
    return torch.cat([torch.zeros_like(sizes), sizes], 1)


def clean_batches(
    images: Images, size: int, box: Callable[[Tensor], Tensor], batch: int, workers: int = -1, filter: str = "bilinear"
) -> Iterator[tuple[Tensor, Tensor]]:
    """All images in order, uint8, with their rows: photographs cut to `box(sizes)` at size×size, arrays as they are."""
    rows = torch.arange(len(images)).split(batch)
    if isinstance(images, ArrayImages):
        yield from ((images.pixels[part[0] : part[-1] + 1], part) for part in rows)  # resized later, on the device
        return
    if isinstance(images, PackedImages):
        for part in rows:
            cut = [
                crop_resize(images.read(few), box(images.sizes[few]), size, filter=filter)
                for few in part.split(AT_ONCE)
            ]
            yield torch.cat(cut).round_().clamp_(0, 255).to(torch.uint8), part
        return
    plan = [(part, [size], [box(images.sizes[part])[:, None]]) for part in rows]
    workers = (os.cpu_count() or 1) if workers < 0 else workers
    for part, (pixels, readable) in zip(rows, decoded(CropFiles(images, filter), plan, workers), strict=True):
        if pixels:
            yield pixels[0][:, 0], part[readable]
