"""A frozen encoder that a term learns from, and its features of the training images."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from effssl.augment.options import Augment
from effssl.data.images import Images
from effssl.features.extract import run_over
from effssl.network.foreign import open_foreign
from effssl.network.loaded import LoadedEncoder
from effssl.run import RunFolder
from effssl.runtime.distribution import gather_uneven, rank, world_size
from effssl.training.trained import trained_encoder

BATCH = 256  # views that the teacher reads at a time
_last: tuple[Images, str, Tensor] | None = None  # a run builds several trainers, all with one teacher


def open_encoder(source: str, architecture: str = "") -> LoadedEncoder:
    """A frozen encoder: of a run, of a weight file, or by the name of a model with pretrained weights."""
    path = Path(source).expanduser()
    return trained_encoder(RunFolder(path)) if path.is_dir() else open_foreign(source, architecture)


class FrozenTeacher:
    """An encoder with its own preprocessing that reads what a run reads: its images, and views normalized its way."""

    def __init__(self, encoder: LoadedEncoder, images: Images, augment: Augment) -> None:
        encoder.pixels.range_in(augment.pixels)  # refuses a teacher of other channels
        self.encoder = encoder
        self.images = images
        self.augment = augment

    @property
    def dim(self) -> int:
        """Width of the features."""
        return self.encoder.dim

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all weights."""
        return self.encoder.fingerprint()

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Features of the run's views N×3×S×S, seen whole: N×dim, in the precision of the views."""
        return torch.cat([self._features_of(part.to(self.encoder.device)) for part in x.split(BATCH)])

    def _features_of(self, x: Tensor) -> Tensor:
        mean, std = (torch.tensor(values).view(-1, 1, 1).to(x) for values in (self.augment.mean, self.augment.std))
        pixels = (x * std + mean).float()
        pixels = pixels.clamp(0, 1) if self.augment.pixels.is_picture else pixels
        whole = self.encoder.with_transform(1.0, self.encoder.filter).normalized(pixels)
        return self.encoder.encoder(whole.contiguous(memory_format=torch.channels_last)).to(x.dtype)

    @torch.no_grad()
    def features(self) -> Tensor:
        """Features of all training images under the encoder's test transform, N×dim on the CPU; computed once.

        An image that cannot be decoded has the features 0.
        """
        global _last
        if _last is None or _last[0] is not self.images or _last[1] != self.fingerprint:
            mine = torch.arange(len(self.images)).tensor_split(world_size())[rank()]
            images = self.images if world_size() == 1 else self.images.select(mine)
            part = run_over(self.encoder, images, lambda rows: None)
            rows, h = gather_uneven(mine[part.rows]), gather_uneven(part.h)
            _last = (self.images, self.fingerprint, torch.zeros(len(self.images), self.dim).index_copy_(0, rows, h))
        return _last[2]
