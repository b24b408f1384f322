"""One batch as the terms see it, and what they ask for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from effssl.runtime.randomness import generator

KINDS = ("view", "small", "own", "clean")  # of views, and of the random numbers that they are made with


@dataclass(frozen=True)
class Own:
    """Views that one term has for itself: how many, how large, and which share of the image they cover."""

    count: int
    size: int
    scale: tuple[float, float]


@dataclass(frozen=True)
class Needs:
    """What a term reads of a batch; only what is needed is made."""

    large: int = 2
    small: bool = False  # the small crops of multi-crop, if the run has any
    clean: bool = False  # the image itself: resized, flipped at random, normalized
    own: Own | None = None


@dataclass(frozen=True)
class Views:
    """Views of one batch, on the training device. In a run of many processes a rank holds `rows` of `total` images."""

    large: list[Tensor]  # each B×3×S×S, normalized
    index: Tensor  # B, row of each image in the data set, on the CPU
    small: list[Tensor] = field(default_factory=list)  # each B×3×s×s
    clean: Tensor | None = None  # B×3×S×S
    own: list[Tensor] = field(default_factory=list)  # each B×3×s×s
    angle: Tensor | None = None  # (n·B) quarter turns of the large views, where rotation is an augmentation; on the CPU
    seed: int = 0
    step: int = 0
    done: float = 0.0  # share of the run before this step
    total: int = 0
    rows: slice = field(default_factory=lambda: slice(None))

    part: int = 0  # of a batch that is computed in parts

    def parts(self, count: int) -> list[Views]:
        """The same views in `count` parts."""
        if count == 1:
            return [self]
        size, first = len(self.index) // count, self.rows.start or 0
        cuts = [slice(k * size, (k + 1) * size) for k in range(count)]
        angles = None if self.angle is None else self.angle.view(len(self.large), -1)
        return [
            replace(
                self,
                large=[x[cut] for x in self.large],
                small=[x[cut] for x in self.small],
                own=[x[cut] for x in self.own],
                clean=None if self.clean is None else self.clean[cut],
                angle=None if angles is None else angles[:, cut].reshape(-1),
                index=self.index[cut],
                rows=slice(first + cut.start, first + cut.stop),
                part=k,
            )
            for k, cut in enumerate(cuts)
        ]

    def generator(self, purpose: str) -> torch.Generator:
        """The random numbers of one purpose in this step, for the whole batch over all ranks."""
        if purpose in KINDS:
            raise ValueError(f"{purpose!r} names the random numbers of the views themselves; choose another purpose")
        return generator(self.seed, purpose, self.step)
