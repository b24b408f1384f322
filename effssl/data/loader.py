"""From a set of images to batches of random views.

For every step the loader draws the augmentation parameters of all views on the CPU, asks the images for the crops, and
finishes them on the device: color, copies of other groups, rotation. Parameters are drawn from (seed, group, step) for
the whole batch, so that processes and workers do not change them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from effssl.augment.crop import boxes as crop_boxes
from effssl.augment.crop import padded_boxes
from effssl.augment.options import Augment, ViewGroup
from effssl.augment.pipeline import ViewParameters, draw_parameters, photometric
from effssl.data.cache import DecodedFiles, ImageCache, decoded_files
from effssl.data.decoding import MARGIN, worker_count
from effssl.data.derived import add_derived
from effssl.data.images import CropBoxes, CropRequest, Crops, Images, Reading
from effssl.data.joined import epoch_order, images_per_epoch
from effssl.data.saliency import SaliencyMaps
from effssl.data.views import Views
from effssl.runtime.errors import RequestError
from effssl.runtime.randomness import generator

IMAGES_PER_DRAW = 1 << 12  # images whose parameters are drawn at once: many steps take hardly longer than one
CLEAN = "clean"  # the group of `Views.clean`: the whole image, which only a flip changes
CLEAN_AUGMENT = {
    "pad": 0,
    "saliency": "",
    "scale": (1.0, 1.0),
    "ratio": (1.0, 1.0),
    "jitter": 0.0,
    "gray": 0.0,
    "blur": (0.0,),
    "solarize": (0.0,),
    "channel_dropout": 0.0,
}


@dataclass(frozen=True)
class ViewSpec:
    """Which views of an image to create: groups by name, all by one augmentation."""

    augment: Augment
    groups: Mapping[str, ViewGroup]
    image_size: int
    clean: bool = False  # also `Views.clean`
    compiled: bool = False  # compile the color jitter


@dataclass(frozen=True)
class Batching:
    """How images are divided into batches."""

    size: int  # images of a batch over all processes
    seed: int
    rows: slice = field(default_factory=lambda: slice(None))  # those of a batch that this process creates views of
    keep_partial: bool = False  # the last batch of an epoch may be smaller; else it is dropped
    workers: int = -1  # processes that decode files; -1 is one per core


@dataclass(frozen=True)
class _PlannedStep:
    """The images of a step and the parameters of their views, by group."""

    number: int  # of the step
    rows: Tensor  # B
    boxes: dict[str, Tensor]  # B·V×4
    parameters: dict[str, ViewParameters]  # of B·V views


class ViewLoader:
    """Batches of random views, the same for any number of processes and workers."""

    def __init__(
        self,
        images: Images,
        spec: ViewSpec,
        batching: Batching,
        device: torch.device,
        side_at: Callable[[int], int] | None = None,
    ) -> None:
        """`side_at(step)` is the side in pixels of all groups of size 1; without it, they have the image size."""
        self.images, self.spec, self.batching, self.device, self.side_at = images, spec, batching, device, side_at
        self.workers = worker_count(batching.workers)
        self.cache: ImageCache | None = None
        # Loaders whose workers live from epoch to epoch, by the identity of their images' `sizes`.
        self.kept_loaders: dict[Tensor, DataLoader] | None = None
        full, rest = divmod(images_per_epoch(images), batching.size)
        self.steps = full + (1 if rest and batching.keep_partial else 0)
        if spec.augment.pad and not images.in_memory:
            raise RequestError("augment.pad is for small images of one size; photographs take resized crops")
        self.saliency = SaliencyMaps.open(spec.augment.saliency, images) if spec.augment.saliency else None
        # Views of each group that has crops of its own.
        self.view_counts = {name: group.count for name, group in spec.groups.items() if not group.copy_of}
        self.augments = {name: self._augment_of(spec.groups[name]) for name in self.view_counts}
        if spec.clean:
            self.view_counts[CLEAN] = 1
            self.augments[CLEAN] = replace(spec.augment, **CLEAN_AUGMENT)  # type: ignore[arg-type]

    def _augment_of(self, group: ViewGroup) -> Augment:
        """A group with a scale of its own takes resized crops, wherever they are."""
        if group.scale == (0, 0):
            return self.spec.augment
        return replace(self.spec.augment, scale=group.scale, pad=0, saliency="")

    def use_cache(self, cache: ImageCache | None) -> None:
        """Keep decoded files there, and read them from there."""
        self.cache = cache

    @contextmanager
    def kept_workers(self) -> Iterator[None]:
        """Within it, worker processes live from epoch to epoch."""
        self.kept_loaders = {}
        try:
            yield
        finally:
            self.kept_loaders = None

    def order(self, epoch: int) -> Tensor:
        """The images of an epoch, shuffled."""
        return epoch_order(self.images, generator(self.batching.seed, "order", epoch))

    def sides(self, step: int) -> dict[str, int]:
        """Side in pixels of the views of each group at a step."""
        size = self.spec.image_size
        growing = self.side_at(step) if self.side_at else size
        sides = {name: growing if g.size == 1 else g.side(size) for name, g in self.spec.groups.items()}
        return sides | ({CLEAN: size} if self.spec.clean else {})

    def decoded_files(self) -> list[DecodedFiles]:
        """The files that every epoch decodes, and how small their crops are."""
        size, height_width = self.spec.image_size, self.images.sizes.double()
        shrink = torch.zeros(len(self.images), dtype=torch.float64)
        for name, augment in self.augments.items():
            group = self.spec.groups.get(name)
            side = group.side(size) if group else size
            narrow = augment.scale[0] * min(augment.ratio[0], 1 / augment.ratio[1])
            boxes = (height_width.prod(1) * narrow).sqrt().clamp(min=1)
            shrink = torch.maximum(shrink, MARGIN * side / torch.minimum(boxes, height_width.min(1).values))
        return decoded_files(self.images, shrink)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Views]:
        """The batches of an epoch from its `first`-th step on."""
        to_request, to_finish = itertools.tee(self._plan(epoch, first))  # images are read some steps ahead
        augment = self.spec.augment
        reading = Reading(
            self.device, augment.filter, self.workers, augment.pixels, cache=self.cache, kept_loaders=self.kept_loaders
        )
        crops = self.images.crops(map(self._request, to_request), reading)
        for step, of_step in zip(to_finish, crops, strict=True):
            yield self._finish(step, of_step)

    # -----------------------------------------------------------------------------------------------------------
    # Before the crop: parameters and boxes, on the CPU

    def _plan(self, epoch: int, first: int) -> Iterator[_PlannedStep]:
        """The steps of an epoch with their parameters, which are drawn for many steps at once."""
        batches = self.order(epoch).split(self.batching.size)[: self.steps]
        numbers = range(epoch * self.steps, (epoch + 1) * self.steps)
        steps = [(number, rows[self.batching.rows]) for number, rows in zip(numbers, batches, strict=True)][first:]
        steps_per_draw = max(1, IMAGES_PER_DRAW // self.batching.size)
        for start in range(0, len(steps), steps_per_draw):
            # A partial batch goes by itself.
            for _, some in itertools.groupby(steps[start : start + steps_per_draw], lambda step: len(step[1])):
                yield from self._draw(*zip(*some, strict=True))

    def _draw(self, numbers: Sequence[int], batches: Sequence[Tensor]) -> Iterator[_PlannedStep]:
        """Draw the parameters of some steps whose batches are of one length."""
        count, rows = len(batches[0]), torch.cat(list(batches))
        first, _, _ = self.batching.rows.indices(self.batching.size)
        kept = slice(first, first + count)
        boxes, parameters = {}, {}
        for name, views in self.view_counts.items():
            generators = [generator(self.batching.seed, name, number) for number in numbers]
            drawn = draw_parameters(self.augments[name], self.batching.size, views, generators, kept)
            boxes[name] = self._boxes(name, drawn, numbers, rows).split(count * views)
            # What the boxes were computed from is large and not needed any more.
            parameters[name] = replace(drawn, box=drawn.box.new_empty(len(drawn.box), 0)).split(count * views)
        for i, (number, batch) in enumerate(zip(numbers, batches, strict=True)):
            of_step = {name: of_steps[i] for name, of_steps in boxes.items()}
            yield _PlannedStep(number, batch, of_step, {name: of_steps[i] for name, of_steps in parameters.items()})

    def _boxes(self, name: str, parameters: ViewParameters, steps: Sequence[int], rows: Tensor) -> Tensor:
        """Crop boxes of a group for all images of some steps, N·V×4 for rows N."""
        augment, views = self.augments[name], self.view_counts[name]
        rows = rows[:, None].expand(-1, views).reshape(-1)
        sizes = self.images.sizes.index_select(0, rows)
        if augment.pad:
            return padded_boxes(sizes, parameters.box[:, 0], augment.pad)
        tries = [crop_boxes(sizes, of_try, augment.ratio) for of_try in parameters.box.unbind(1)]
        if self.saliency is None or not augment.saliency:
            return tries[0]
        return self.saliency.choose(rows, sizes, tries, self._by_saliency(name, steps, rows))

    def _by_saliency(self, name: str, steps: Sequence[int], rows: Tensor) -> Tensor:
        """Which views of a group have their boxes chosen by saliency, N·V booleans for rows N·V."""
        augment, seed, views = self.augments[name], self.batching.seed, self.view_counts[name]
        if augment.saliency_by == "image":
            uniform = torch.rand(len(self.images), generator=generator(seed, "saliency images"))[rows]
            return uniform < augment.saliency_share
        by_crop = augment.saliency_by == "crop"
        purpose = f"{name} saliency" if by_crop else "saliency"
        size, of_step = (views if by_crop else 1, self.batching.size), len(rows) // len(steps)
        drawn = [torch.rand(size, generator=generator(seed, purpose, step)).T[self.batching.rows] for step in steps]
        return torch.cat([u.expand(-1, views).reshape(-1)[:of_step] for u in drawn]) < augment.saliency_share

    def _request(self, step: _PlannedStep) -> CropRequest:
        sides = self.sides(step.number)
        groups = {name: CropBoxes(boxes, step.parameters[name].flip, sides[name]) for name, boxes in step.boxes.items()}
        return CropRequest(step.rows, groups)

    # -----------------------------------------------------------------------------------------------------------
    # After the crop: color, copies, rotation, on the device

    def _finish(self, step: _PlannedStep, crops: Crops) -> Views:
        """The finished views of a step."""
        index, crops = _fill(step.rows, crops)
        pixels = {}
        for name, x in crops.groups.items():
            x = photometric(self.augments[name], x, step.parameters[name], self.spec.compiled)
            pixels[name] = _by_view(x, self.view_counts[name])
        clean = pixels.pop(CLEAN)[0] if self.spec.clean else None
        views = Views(index, pixels, {}, clean, self.batching.seed, step.number, self.batching.size, self.batching.rows)
        return add_derived(views, self.spec.groups, self.sides(step.number))


def _fill(rows: Tensor, crops: Crops) -> tuple[Tensor, Crops]:
    """Rows and crops of a full batch: the nearest readable predecessor replaces an image that cannot be read."""
    if bool(crops.readable.all()):
        return rows, crops
    if not bool(crops.readable.any()):
        raise RequestError(f"none of the {len(rows)} images of a batch can be decoded")
    source = (crops.readable.cumsum(0) - 1).clamp(min=0)
    groups = {name: x.index_select(0, source.to(x.device)) for name, x in crops.groups.items()}
    return rows[crops.readable][source], replace(crops, groups=groups)


def _by_view(x: Tensor, views: int) -> Tensor:
    """B×C×(V·S)×S → V×B×C×S×S; all views together, x.flatten(0, 1), are channels-last."""
    return x.unflatten(2, (views, -1)).permute(2, 0, 3, 4, 1).contiguous().permute(0, 1, 4, 2, 3)
