"""What a set of images is: sizes, labels, names, and crops on request. A new source of images implements `Images`."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from effssl.augment.pipeline import crop_and_flip
from effssl.augment.pixel_format import PixelFormat

if TYPE_CHECKING:
    from PIL import Image
    from torch.utils.data import DataLoader

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class CropBoxes:
    """V crops of each of B images: boxes B·V×4 (top, left, height, width), flips B·V; those of an image together."""

    boxes: Tensor
    flips: Tensor
    side: int  # pixels of a crop, which is square


@dataclass(frozen=True)
class CropRequest:
    """Crops of one batch of images, in named groups; all tensors are on the CPU."""

    rows: Tensor  # B
    groups: Mapping[str, CropBoxes]


@dataclass(frozen=True)
class Crops:
    """The crops of a request. Images that cannot be read have none."""

    readable: Tensor  # B booleans, on the CPU
    groups: dict[str, Tensor]  # N×C×(V·side)×side of the N readable images, in [0, 1], on the device


class DecodedStore(Protocol):
    """Where decoded files are kept (effssl/data/cache.py); worker processes get a copy."""

    def decoded(self, stamp: str, size: Sequence[int], shrink: float, decode: Callable[[], Image.Image]) -> Image.Image:
        """The image that `decode()` returns for a file of this stamp, height and width, kept from then on."""

    def pixels(self, stamp: str, size: Sequence[int], of: PixelFormat, read: Callable[[], np.ndarray]) -> np.ndarray:
        """The same of an image of any pixels, H×W×C, that `read()` returns."""


@dataclass(frozen=True)
class Reading:
    """How images are read: to which device, by which filter, with how many decoding processes, as which pixels."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    filter: str = "bilinear"
    workers: int = -1  # processes that decode files; -1 is one per core
    pixels: PixelFormat | None = None  # what the reader takes; None is what the images are
    center: float = 0.0  # boxes are center squares of this share: of a JPEG decoded smaller, they are found anew
    cache: DecodedStore | None = None  # where decoded files are kept
    # Loaders whose workers live on, by the sizes of their images; None if workers end with the requests.
    kept_loaders: dict[Tensor, DataLoader] | None = None

    def scaling(self, images: PixelFormat) -> tuple[float, float, int]:
        """The value that becomes 0, the factor that follows, and how often a channel is repeated."""
        low, high = (self.pixels or images).range_in(images)
        return low, 1 / (high - low), (self.pixels or images).channels // images.channels


class Images(Protocol):
    """A set of images. Only `crops` and `image` read pixels."""

    @property
    def in_memory(self) -> bool:
        """Whether all images have one size and are those of one array, in memory or mapped into it."""

    @property
    def from_files(self) -> bool:
        """Whether images are decoded from `paths` each time they are read, so that reading is slow and may fail."""

    @property
    def sizes(self) -> Tensor:
        """Height and width of every image, N×2."""

    @property
    def pixel_format(self) -> PixelFormat:
        """What the pixels of every image are."""

    @property
    def labels(self) -> Tensor | None:
        """Class of every image, N, or one yes or no per class, N×classes; None without labels."""

    @property
    def classes(self) -> list[str]:
        """Names of the classes."""

    @property
    def paths(self) -> list[Path] | None:
        """File of every image, which for a pack or an archive is a name only; None where images never had files."""

    def __len__(self) -> int: ...

    def select(self, rows: Tensor) -> Images:
        """The same set with only these rows."""

    def fingerprint(self) -> str:
        """A short digest that changes when an image or a label does."""

    def array(self, row: int) -> np.ndarray:
        """The pixels of one whole image, H×W×C; raises OSError if it cannot be read."""

    def image(self, row: int) -> Image.Image:
        """One whole image as RGB, in false color where it has other channels; raises OSError if it cannot be read."""

    def crops(self, requests: Iterable[CropRequest], reading: Reading) -> Iterator[Crops]:
        """The crops of each request, in order; requests are taken some time before their crops are yielded."""


def whole_boxes(sizes: Tensor) -> Tensor:
    """Boxes that cover each image, N×4, for sizes N×2.

    >>> whole_boxes(torch.tensor([[20, 30]])).tolist()
    [[0, 0, 20, 30]]
    """
    return torch.cat([torch.zeros_like(sizes), sizes], 1)


def crop_batches(
    images: Images, boxes: Tensor, side: int, batch: int, reading: Reading | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """One crop of every image, in order: B×C×side×side in [0, 1] on the device, and their rows, B.

    boxes: N×4. Images that cannot be read are left out, and so are batches without any readable image.
    """
    parts = torch.arange(len(images)).split(batch)
    upright = torch.zeros(batch, dtype=torch.bool)
    requests = (CropRequest(rows, {"": CropBoxes(boxes[rows], upright[: len(rows)], side)}) for rows in parts)
    for rows, crops in zip(parts, images.crops(requests, reading or Reading()), strict=True):
        if bool(crops.readable.any()):
            yield crops.groups[""], rows[crops.readable]


# ---------------------------------------------------------------------------------------------------------------
# What sources share


def crop_from_pixels(
    batches: Iterable[tuple[CropRequest, list[Tensor]]], images: PixelFormat, reading: Reading
) -> Iterator[Crops]:
    """Crop on the device. A batch of whole images comes in parts N×C×H×W: as floats it may not fit in memory."""
    low, factor, repeats = reading.scaling(images)
    for request, parts in batches:
        cropped: dict[str, list[Tensor]] = {name: [] for name in request.groups}
        start = 0
        for part in parts:
            pixels, count = upload(part, reading.device), len(part)
            pixels = pixels.float() - low if low else pixels
            for name, group in request.groups.items():
                views = len(group.boxes) // len(request.rows)
                of_part = slice(start * views, (start + count) * views)
                boxes, flips = group.boxes[of_part], group.flips[of_part]
                some = crop_and_flip(pixels, boxes, flips, group.side, reading.filter, factor)
                cropped[name].append(repeated(some, repeats))
            start += count
        groups = {name: torch.cat(some) if len(some) > 1 else some[0] for name, some in cropped.items()}
        yield Crops(torch.ones(len(request.rows), dtype=torch.bool), groups)


def repeated(x: Tensor, times: int) -> Tensor:
    """Images of one channel N×1×H×W as N×times×H×W; others are returned as they are."""
    return x.repeat(1, times, 1, 1) if times > 1 else x


def upload(x: Tensor, device: torch.device) -> Tensor:
    """Copy to the device; a GPU reads pinned memory by itself while the CPU continues."""
    return (x.pin_memory() if device.type == "cuda" else x).to(device, non_blocking=True)


def read_ahead(read: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
    """Each item with its result, which a thread computes while the one before is in use.

    >>> list(read_ahead(abs, [-1, 2]))
    [(-1, 1), (2, 2)]
    """
    waiting: deque = deque()
    with ThreadPoolExecutor(1) as pool:
        for item in items:
            waiting.append((item, pool.submit(read, item)))
            if len(waiting) > 1:
                ready, result = waiting.popleft()
                yield ready, result.result()
        for ready, result in waiting:
            yield ready, result.result()


def select_labels(labels: Tensor | None, rows: Tensor) -> Tensor | None:
    """Labels of some rows, where there are labels."""
    return None if labels is None else labels[rows]


def hex_digest(digest: hashlib.blake2b, labels: Tensor | None) -> str:
    """The digest of images and their labels as text."""
    if labels is not None:
        digest.update(labels.contiguous().numpy().data)
    return digest.hexdigest()
