"""Features of a whole set, computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from effssl.augment.crop import center_boxes
from effssl.augment.rotate import rotate_quarters
from effssl.data import Data, Images
from effssl.data.images import Reading, crop_batches
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.progress import progress_bar

BATCH = 500
PIXELS = 1 << 26  # of a batch, in each channel: more would fill the memory


@dataclass(frozen=True)
class Features:
    """Features of images, N×dim float32 on the CPU, and their labels."""

    h: Tensor
    labels: Tensor | None
    rows: Tensor  # of the images in their set; those that cannot be decoded have no features

    def among(self, rows: Tensor) -> Features:
        """Features of some images of the set."""
        keep = torch.isin(self.rows, rows)
        return Features(self.h[keep], None if self.labels is None else self.labels[keep], self.rows[keep])


def extract(encoder: LoadedEncoder, images: Images, text: str = "features", turns: int = 0, on: str = "h") -> Features:
    """Features of all images by a frozen encoder under its test transform; only unreadable files are left out.

    `turns` rotates every image by so many quarter turns; `on` is h, or z for the projection.
    """
    assert not encoder.training, "the encoder is not in eval mode"
    assert not any(p.requires_grad for p in encoder.parameters()), "the encoder is not frozen"
    with torch.inference_mode(), progress_bar(text, len(images)) as advance:
        features = run_over(encoder, images, advance, turns, on)
    if not len(features.rows):
        first = f", e.g. {images.paths[0]}" if images.paths else ""
        raise RequestError(f"{text}: none of the {len(images)} images can be decoded{first}")
    if not bool(torch.isfinite(features.h).all()):
        raise RunFailed(f"{text}: features are not finite; check how the encoder was trained")
    return Features(features.h.clone(), features.labels, features.rows)


def run_over(
    encoder: LoadedEncoder, images: Images, advance: Callable[[int], None], turns: int = 0, on: str = "h"
) -> Features:
    """Features under the test transform, whatever mode the encoder is in."""
    parts, kept = [], [torch.empty(0, dtype=torch.long)]
    for h, rows in feature_batches(encoder, images, turns, on):
        parts.append(h)
        kept.append(rows)
        advance(len(rows))
    rows = torch.cat(kept)
    h = torch.cat(parts) if parts else torch.empty(0, encoder.dim)
    return Features(h, None if images.labels is None else images.labels[rows], rows)


def feature_batches(
    encoder: LoadedEncoder, images: Images, turns: int = 0, on: str = "h", batch: int = BATCH, workers: int = -1
) -> Iterator[tuple[Tensor, Tensor]]:
    """Features of each batch of images, B×dim float32 on the CPU, and their rows in the set."""
    reading = Reading(encoder.device, encoder.filter, workers, encoder.pixels, encoder.share)
    batch = fitting_batch(batch, encoder.size)
    for pixels, rows in crop_batches(images, _test_boxes(encoder, images), encoder.size, batch, reading):
        x = encoder.normalized(pixels)
        if turns:
            x = rotate_quarters(x, torch.full((len(x),), turns))
        x = x.contiguous(memory_format=torch.channels_last)
        h = encoder.encoder(x)
        yield (encoder.project(h) if on == "z" else h).float().cpu(), rows


def fitting_batch(batch: int, side: int) -> int:
    """The number of images of a batch, fewer where they are large.

    >>> fitting_batch(500, 224), fitting_batch(500, 2048)
    (500, 16)
    """
    return max(1, min(batch, PIXELS // side**2))


def _test_boxes(encoder: LoadedEncoder, images: Images) -> Tensor:
    """The center crop of the test transform; images in memory that have the encoder's size are used as they are."""
    as_is = images.in_memory and images.sizes[0].tolist() == [encoder.size, encoder.size]
    return center_boxes(images.sizes, 1.0 if as_is else encoder.share)


def labelled(data: Data, what: str) -> tuple[Images, Images]:
    """Train and test images of a data set; RequestError if it has no labels for both."""
    if data.train.labels is None:
        raise RequestError(f"{data.name} has no labels, which {what} needs; --data names a labelled set")
    if data.test is None or data.test.labels is None:
        raise RequestError(f"{data.name} has no labelled test images; put them in train/ and test/ sub-folders")
    strangers = int((data.test.labels >= len(data.train.classes)).sum())
    if strangers:
        raise RequestError(f"{strangers} test images of {data.name} belong to classes that train does not have")
    if len(data.train.classes) < 2:
        raise RequestError(f"{data.name} has fewer than two classes; {what} needs at least two")
    return data.train, data.test
