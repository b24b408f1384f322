"""A frozen encoder that a term learns from, and its features of the training images."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from effssl.augment.options import Augment
from effssl.data.images import Images
from effssl.features.extract import run_over
from effssl.network.foreign import open_foreign
from effssl.network.loaded import LoadedEncoder
from effssl.objectives.options import TeacherOptions
from effssl.recipes.resolve import Plan
from effssl.run import RunFolder
from effssl.runtime.distribution import gather_uneven, rank, world_size
from effssl.runtime.errors import RequestError
from effssl.training.start import is_same_place, place_of
from effssl.training.trained import trained_encoder

BATCH = 256  # views that the teacher reads at a time
_last: tuple[Images, str, Tensor] | None = None  # a run builds several trainers, all with one teacher


def open_encoder(options: TeacherOptions) -> LoadedEncoder:
    """A frozen encoder: of a run, of a weight file, or by the name of a model with pretrained weights."""
    path = Path(options.teacher).expanduser()
    return trained_encoder(RunFolder(path)) if path.is_dir() else open_foreign(options.teacher, options.encoder)


@contextmanager
def named(term: str) -> Iterator[None]:
    """A block in which an error about a teacher says which term it is for."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"{term}.teacher: {error.args[0].replace('--encoder', f'--{term}.encoder')}") from None


def with_teachers(plan: Plan, flags: Mapping[str, Any], before: RunFolder | None) -> Plan:
    """The plan with the absolute place and the digest of each teacher; `before` is the run that is resumed.

    A configuration that names a teacher by its digest means that one and no other.
    """
    config = plan.config
    for term in plan.weights:
        options = getattr(config, term)
        if not isinstance(options, TeacherOptions) or not options.teacher:
            continue
        place, given = place_of(options.teacher), flags.get(term, {})
        digest = _earlier_digest(term, options, before)
        if not digest:
            with named(term):
                digest = open_encoder(options).fingerprint()
            wanted = "" if "teacher" in given and "digest" not in given else options.digest
            if wanted and wanted != digest:
                changed = f"its digest is {digest}, not {wanted} as in the configuration"
                raise RequestError(f"{term}.teacher {place} has changed: {changed}")
        recorded: dict[str, Any] = {term: dataclasses.replace(options, teacher=place, digest=digest)}
        config = dataclasses.replace(config, **recorded)
    return dataclasses.replace(plan, config=config)


def _earlier_digest(term: str, options: TeacherOptions, before: RunFolder | None) -> str:
    """The digest that a run recorded for this teacher, once it holds weights that learned from it; else ""."""
    if before is None or not (before.finished or before.checkpoint_path.is_file()):
        return ""
    recorded = getattr(before.config, term)
    return recorded.digest if is_same_place(options.teacher, recorded.teacher) else ""


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
