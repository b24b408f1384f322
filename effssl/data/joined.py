"""Several data sets as one: names and classes stay apart, and an epoch has the images of each by its weight."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from effssl.augment.pixel_format import PixelFormat
from effssl.data.dataset import Data
from effssl.data.decoding import worker_count
from effssl.data.images import CropBoxes, CropRequest, Crops, Images, Reading, hex_digest, select_labels
from effssl.runtime.errors import RequestError
from effssl.runtime.private_paths import short_names
from effssl.runtime.progress import say

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class JoinedImages:
    """Images of several sets; each set reads its own."""

    parts: Sequence[Images]
    names: Sequence[str]  # of the sets
    weights: Sequence[float]  # how often an epoch has each image of a set
    part_of: Tensor  # N: the set of each image
    row_of: Tensor  # N: its row there
    labels: Tensor | None = None
    classes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, parts: Sequence[Images], names: Sequence[str], weights: Sequence[float]) -> JoinedImages:
        """All images of some sets, without labels."""
        part_of = torch.arange(len(parts)).repeat_interleave(torch.tensor([len(part) for part in parts]))
        row_of = torch.cat([torch.arange(len(part)) for part in parts])
        return cls(parts, names, weights, part_of, row_of)

    def __len__(self) -> int:
        return len(self.part_of)

    @property
    def in_memory(self) -> bool:
        """Whether all sets are in memory and have images of one size."""
        return all(part.in_memory for part in self.parts) and bool((self.sizes == self.sizes[:1]).all())

    @property
    def from_files(self) -> bool:
        """Whether images of a set are decoded each time they are read."""
        return any(part.from_files for part in self.parts)

    @cached_property
    def sizes(self) -> Tensor:
        """Height and width of every image, N×2."""
        sizes = torch.empty(len(self), 2, dtype=torch.int64)
        for number, part in enumerate(self.parts):
            mine = self.part_of == number
            sizes[mine] = part.sizes[self.row_of[mine]]
        return sizes

    @cached_property
    def paths(self) -> list[Path] | None:
        """File of every image; names of packs begin with that of their set. None where a set has no files."""
        of_parts = [part.paths for part in self.parts]
        if any(paths is None for paths in of_parts):
            return None
        places = zip(self.part_of.tolist(), self.row_of.tolist(), strict=True)
        return [Path(self.names[number]) / (of_parts[number] or [])[row] for number, row in places]

    def select(self, rows: Tensor) -> JoinedImages:
        """The same images with only these rows."""
        labels = select_labels(self.labels, rows)
        return replace(self, part_of=self.part_of[rows], row_of=self.row_of[rows], labels=labels)

    def fingerprint(self) -> str:
        """A short digest that changes when an image or a label does."""
        digest = hashlib.blake2b(self.part_of.contiguous().numpy().data, digest_size=8)
        for number, part in enumerate(self.parts):
            digest.update(part.select(self.row_of[self.part_of == number]).fingerprint().encode())
        return hex_digest(digest, self.labels)

    @property
    def pixel_format(self) -> PixelFormat:
        """What the pixels of every image are; the range of floats is that of all sets."""
        each = [part.pixel_format for part in self.parts]
        low, high = min(one.range[0] for one in each), max(one.range[1] for one in each)
        return replace(each[0], range=(low, high))

    def array(self, row: int) -> np.ndarray:
        """The pixels of one whole image, H×W×C."""
        return self.parts[int(self.part_of[row])].array(int(self.row_of[row]))

    def image(self, row: int) -> Image.Image:
        """One whole image."""
        return self.parts[int(self.part_of[row])].image(int(self.row_of[row]))

    def crops(self, requests: Iterable[CropRequest], reading: Reading) -> Iterator[Crops]:
        """The crops of each request, in order; every set reads its own images of it."""
        decoding = sum(part.from_files for part in self.parts)
        if decoding > 1 and (workers := worker_count(reading.workers)):
            reading = replace(reading, workers=max(1, workers // decoding))
        reading = replace(reading, pixels=reading.pixels or self.pixel_format)  # one range for all sets
        asked, *copies = itertools.tee(requests, len(self.parts) + 1)
        streams = [
            part.crops(self._requests_of(number, copy), reading)
            for number, (part, copy) in enumerate(zip(self.parts, copies, strict=True))
        ]
        for request in asked:
            part_of = self.part_of[request.rows]
            there = part_of.unique().tolist()
            yield _merge(part_of, {number: next(streams[number]) for number in there})

    def _requests_of(self, number: int, requests: Iterable[CropRequest]) -> Iterator[CropRequest]:
        """What is asked of one set; nothing where a request has none of its images."""
        for request in requests:
            mine = self.part_of[request.rows] == number
            if bool(mine.any()):
                groups = {name: _some_boxes(group, mine) for name, group in request.groups.items()}
                yield CropRequest(self.row_of[request.rows[mine]], groups)

    # -----------------------------------------------------------------------------------------------------------
    # Epochs

    @property
    def images_per_epoch(self) -> int:
        """How many images an epoch has, those that come twice counted twice."""
        counts = torch.bincount(self.part_of, minlength=len(self.parts)).tolist()
        return sum(round(weight * count) for weight, count in zip(self.weights, counts, strict=True))

    def epoch_order(self, random: torch.Generator) -> Tensor:
        """The rows of one epoch, shuffled."""
        rows = []
        for number, weight in enumerate(self.weights):
            mine = (self.part_of == number).nonzero().squeeze(1)
            rest = round(weight * len(mine)) - int(weight) * len(mine)
            rows += [mine.repeat(int(weight)), mine[torch.randperm(len(mine), generator=random)[:rest]]]
        together = torch.cat(rows)
        return together[torch.randperm(len(together), generator=random)]


def images_per_epoch(images: Images) -> int:
    """How many images an epoch has: all, or by the weights of several sets."""
    return images.images_per_epoch if isinstance(images, JoinedImages) else len(images)


def epoch_order(images: Images, random: torch.Generator) -> Tensor:
    """The rows of one epoch, shuffled."""
    if isinstance(images, JoinedImages) and any(weight != 1 for weight in images.weights):
        return images.epoch_order(random)
    return torch.randperm(len(images), generator=random)


def _some_boxes(group: CropBoxes, chosen: Tensor) -> CropBoxes:
    """The boxes of some of B images."""
    boxes, flips = group.boxes.view(len(chosen), -1, 4)[chosen], group.flips.view(len(chosen), -1)[chosen]
    return CropBoxes(boxes.flatten(0, 1), flips.flatten(), group.side)


def _merge(part_of: Tensor, crops: dict[int, Crops]) -> Crops:
    """One batch from those of the sets; `part_of` is the set of each of its images."""
    if len(crops) == 1:
        return next(iter(crops.values()))
    readable = torch.zeros(len(part_of), dtype=torch.bool)
    places = []
    for number, some in crops.items():
        mine = (part_of == number).nonzero().squeeze(1)
        readable[mine] = some.readable
        places.append(mine[some.readable])
    order = torch.cat(places).argsort()
    names = next(iter(crops.values())).groups
    together = {name: torch.cat([some.groups[name] for some in crops.values()]) for name in names}
    return Crops(readable, {name: x.index_select(0, order.to(x.device)) for name, x in together.items()})


# ---------------------------------------------------------------------------------------------------------------
# Sets of training and test images


def join(sets: Sequence[Data], specs: Sequence[str], weights: Sequence[float]) -> Data:
    """Several data sets as one; labels are used if all sets have them, and classes are called <set>/<class>."""
    twice = next((spec for spec in specs if specs.count(spec) > 1), None)
    if twice is not None:
        raise RequestError(f"{twice} is given twice; give it once with a weight, e.g. 2*{twice}")
    _refuse_other_pixels(sets)
    names = [data.name for data in sets]
    if len(set(names)) < len(names):
        names = short_names([Path(spec) for spec in specs])
    bare = [name for name, data in zip(names, sets, strict=True) if data.train.labels is None]
    if bare and len(bare) < len(sets):
        say(f"{', '.join(bare)} has no labels, so those of the other sets are not used")
    train = _join_images([data.train for data in sets], names, weights, not bare, sets)
    assert train is not None
    test = _join_images([data.test for data in sets], names, weights, not bare, sets)
    held_out = None if bare else _join_images([data.held_out for data in sets], names, weights, True, sets)
    return Data("+".join(names), train, test, held_out, [file for data in sets for file in data.unreadable])


def _refuse_other_pixels(sets: Sequence[Data]) -> None:
    first = sets[0].train.pixel_format
    for data in sets[1:]:
        other = data.train.pixel_format
        if (other.channels, other.depth) != (first.channels, first.depth):
            raise RequestError(
                f"{sets[0].name} has {first}, and {data.name} has {other}; give sets of equal channels and types of "
                "values: convert the files of one, or train on one alone"
            )


def _join_images(
    parts: Sequence[Images | None], names: Sequence[str], weights: Sequence[float], labelled: bool, sets: Sequence[Data]
) -> JoinedImages | None:
    """The images of those sets that have some, with classes numbered over all sets."""
    there = [number for number, part in enumerate(parts) if part is not None and not (labelled and part.labels is None)]
    some = [part for number in there if (part := parts[number]) is not None]
    if not some:
        return None
    joined = JoinedImages.of(some, [names[number] for number in there], [weights[number] for number in there])
    if not labelled:
        return joined
    before = list(itertools.accumulate((len(data.train.classes) for data in sets), initial=0))
    labels = [part.labels + before[number] for number, part in zip(there, some, strict=True) if part.labels is not None]
    classes = [f"{name}/{label}" for name, data in zip(names, sets, strict=True) for label in data.train.classes]
    return replace(joined, labels=torch.cat(labels), classes=classes)
