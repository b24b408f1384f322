"""Agreement of neighbors under augmentation: how good features are, without labels.

An image and a changed copy of it (another crop, mirrored, other colors) show the same thing, so good features find the
same neighbors for both. The neighbors of each image are searched twice: among the images as they are, and among the
changed copies of all of them. The agreement is the share of neighbors that both lists have in common. Features that
follow the position of things or the light of a picture find other neighbors; features that are the same for all
images find arbitrary ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.augment.crop import boxes, center_boxes
from effssl.augment.options import Augment
from effssl.augment.pipeline import ViewParameters, draw_parameters, photometric
from effssl.augment.pixel_format import PixelFormat, stored_format
from effssl.data import ArrayImages, Images
from effssl.data.images import CropBoxes, CropRequest, Reading
from effssl.features.whitening import first_images
from effssl.runtime.errors import RequestError
from effssl.runtime.randomness import generator

CHANGE = Augment(scale=(0.3, 1.0), jitter=1.0, gray=0.0)
"""How a copy is changed; always the same, whatever a run was trained with."""
NEIGHBORS = 10
MOST = 1000  # images: enough for a point of agreement, and few to compute
ROOM = 1 << 26  # bytes of each copy of the images
BATCH = 250


@dataclass(frozen=True)
class ImagePairs:
    """Images, and a changed copy of each."""

    plain: ArrayImages
    changed: ArrayImages

    def __len__(self) -> int:
        return len(self.plain)


def image_pairs(images: Images, side: int, most: int = MOST, reading: Reading | None = None) -> ImagePairs:
    """The center squares of at most `most` of the images, and their changed copies; each image is decoded once."""
    reading = reading or Reading()
    stored = stored_format(reading.pixels or images.pixel_format)
    images = first_images(images, max(2, min(most, ROOM // (stored.bytes * side**2))))
    none, one = (0.0,) * stored.channels, (1.0,) * stored.channels  # no normalization
    change = replace(CHANGE, pixels=stored, mean=none, std=one)
    drawn = draw_parameters(change, len(images), 1, [generator(0, "agreement")])
    crops = boxes(images.sizes, drawn.box[:, 0], CHANGE.ratio)
    squares = CropBoxes(center_boxes(images.sizes, 1.0), torch.zeros(len(images), dtype=torch.bool), side)
    pair = {"plain": squares, "changed": CropBoxes(crops, drawn.flip, side)}
    parts = torch.arange(len(images)).split(BATCH)
    requests = (CropRequest(rows, {name: _some(crops, rows) for name, crops in pair.items()}) for rows in parts)
    plain, changed = [], []
    for rows, found in zip(parts, images.crops(requests, reading), strict=True):
        if bool(found.readable.any()):
            own = ViewParameters(*(x[rows[found.readable]] for x in vars(drawn).values()))
            plain.append(_stored(found.groups["plain"], stored))
            changed.append(_stored(photometric(change, found.groups["changed"], own), stored))
    if not plain:
        raise RequestError(f"none of {len(images)} images can be decoded")
    both = (ArrayImages(torch.cat(parts), pixel_format=stored) for parts in (plain, changed))
    return ImagePairs(*both)


def _some(crops: CropBoxes, rows: Tensor) -> CropBoxes:
    return CropBoxes(crops.boxes[rows], crops.flips[rows], crops.side)


def _stored(x: Tensor, pixels: PixelFormat) -> Tensor:
    """Images between 0 and 1 as an array holds them."""
    low, high = pixels.range
    values = low + (high - low) * x
    return (values.round_().clamp_(0, 255).to(torch.uint8) if pixels.is_picture else values).cpu()


def agreement(plain: Tensor, changed: Tensor, k: int = NEIGHBORS) -> float:
    """Percent of each image's k neighbors that the changed copies have in common with the images; features N×dim.

    >>> x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> agreement(x, 2 * x, k=1), agreement(x, x[[0, 2, 1, 3]], k=1)
    (100.0, 0.0)
    """
    k = min(k, len(plain) - 1)
    first, second = _neighbors(plain, k), _neighbors(changed, k)
    return 100 * (first[:, :, None] == second[:, None, :]).any(2).float().mean().item()


def _neighbors(features: Tensor, k: int) -> Tensor:
    unit = F.normalize(features.float(), dim=1)
    return (unit @ unit.T).fill_diagonal_(-2).topk(k).indices  # N×k, without the image itself


def chance_agreement(count: int, k: int = NEIGHBORS) -> float:
    """Percent that neighbors drawn at random have in common, among so many images."""
    return 100 * min(k, count - 1) / max(1, count - 1)
