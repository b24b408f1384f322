"""Features of a whole set, computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from effssl.augment.crop import center_boxes
from effssl.augment.rotate import rotate_quarters
from effssl.data import Data, FolderImages, Images
from effssl.data.loader import clean_batches
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import counter

BATCH = 500


@dataclass(frozen=True)
class Features:
    """Features of images, N×dim float32 on the CPU, and their labels."""

    h: Tensor
    labels: Tensor | None
    rows: Tensor  # which images of the set they are: all but those that could not be decoded

    def among(self, rows: Tensor) -> Features:
        """Those of some of the set's images."""
        keep = torch.isin(self.rows, rows)
        return Features(self.h[keep], None if self.labels is None else self.labels[keep], self.rows[keep])


def extract(encoder: LoadedEncoder, images: Images, text: str = "features", turns: int = 0, on: str = "h") -> Features:
    """Run a frozen encoder over all images under the test transform; no image is dropped but unreadable files.

    `turns` rotates every image by so many quarter turns; `on` is h, or z for the projection.
    """
    assert not encoder.training, "the encoder is not in eval mode"
    assert not any(p.requires_grad for p in encoder.parameters()), "the encoder is not frozen"
    with torch.inference_mode(), counter(text, len(images)) as advance:
        features = run_over(encoder, images, advance, turns, on)
    if not len(features.rows):
        first = f", e.g. {images.paths[0]}" if isinstance(images, FolderImages) else ""
        raise RequestError(f"{text}: none of the {len(images)} images can be decoded{first}")
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
    """Features of each batch of images, B×dim float32 on the CPU, and which images of the set they are."""
    boxes = partial(center_boxes, share=encoder.share)
    for pixels, rows in clean_batches(images, encoder.size, boxes, batch, workers, encoder.filter):
        x = encoder.preprocess(pixels.to(encoder.device, non_blocking=True))
        if turns:
            x = rotate_quarters(x, torch.full((len(x),), turns))
        h = encoder.encoder(x.contiguous(memory_format=torch.channels_last))
        yield (encoder.project(h) if on == "z" else h).float().cpu(), rows


def labelled(data: Data, what: str) -> tuple[Images, Images]:
    """Train and test images of a data set that has labels for both, or a clear refusal."""
    if data.train.labels is None:
        raise RequestError(f"{data.name} has no labels, which {what} needs; --data names a labelled set")
    if data.test is None or data.test.labels is None:
        raise RequestError(f"{data.name} has no labelled test images; put them in train/ and test/ sub-folders")
    strangers = int((data.test.labels >= len(data.train.classes)).sum())
    if strangers:
        raise RequestError(f"{strangers} test images of {data.name} belong to classes that train does not have")
    if len(data.train.classes) < 2:
        raise RequestError(f"{data.name} has fewer than two classes; {what} has nothing to tell apart")
    return data.train, data.test
