"""Features of a whole set, computed once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from effssl.data import Images
from effssl.data.loader import clean_batches
from effssl.network.loaded import LoadedEncoder, center_share
from effssl.progress import counter

BATCH = 500


@dataclass(frozen=True)
class Features:
    """Features of images, N×dim float32 on the CPU, and their labels."""

    h: Tensor
    labels: Tensor | None

    def rows(self, index: Tensor) -> Features:
        """Some of them."""
        return Features(self.h[index], None if self.labels is None else self.labels[index])


def extract(encoder: LoadedEncoder, images: Images, text: str = "features") -> Features:
    """Run a frozen encoder over all images under the test transform; no image is dropped but unreadable files."""
    assert not encoder.training, "the encoder is not in eval mode"
    assert not any(p.requires_grad for p in encoder.parameters()), "the encoder is not frozen"
    device = next(encoder.parameters()).device
    parts, kept = [], []
    with torch.inference_mode(), counter(text, len(images)) as advance:
        for pixels, rows in clean_batches(images, encoder.size, center_share(encoder.size), BATCH):
            parts.append(encoder(pixels.to(device, non_blocking=True)).float().cpu())
            kept.append(rows)
            advance(len(rows))
    rows = torch.cat(kept)
    return Features(torch.cat(parts).clone(), None if images.labels is None else images.labels[rows])
