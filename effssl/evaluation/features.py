"""Features of a whole set, computed once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from effssl.data import Images
from effssl.data.loader import clean_batches
from effssl.network.loaded import LoadedEncoder, eval_boxes
from effssl.progress import counter

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


def extract(encoder: LoadedEncoder, images: Images, text: str = "features") -> Features:
    """Run a frozen encoder over all images under the test transform; no image is dropped but unreadable files."""
    assert not encoder.training, "the encoder is not in eval mode"
    assert not any(p.requires_grad for p in encoder.parameters()), "the encoder is not frozen"
    with torch.inference_mode(), counter(text, len(images)) as advance:
        features = run_over(encoder, images, advance)
    return Features(features.h.clone(), features.labels, features.rows)


def run_over(encoder: LoadedEncoder, images: Images, advance: Callable[[int], None]) -> Features:
    """Features under the test transform, whatever mode the encoder is in."""
    device = next(encoder.parameters()).device
    parts, kept = [torch.empty(0, encoder.dim)], [torch.empty(0, dtype=torch.long)]
    for pixels, rows in clean_batches(images, encoder.size, partial(eval_boxes, size=encoder.size), BATCH):
        parts.append(encoder(pixels.to(device, non_blocking=True)).float().cpu())
        kept.append(rows)
        advance(len(rows))
    rows = torch.cat(kept)
    return Features(torch.cat(parts), None if images.labels is None else images.labels[rows], rows)
