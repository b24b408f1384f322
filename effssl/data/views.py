"""One batch as the terms see it: the views of every group, and the random numbers of the step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from effssl.runtime.randomness import generator


@dataclass(frozen=True)
class Views:
    """Views of one batch, on the training device. In a run of many processes a rank holds `rows` of `total` images."""

    index: Tensor  # B: row of each image in the data set, on the CPU
    pixels: dict[str, Tensor] = field(default_factory=dict)  # by group, V×B×C×S×S: normalized, each view channels-last
    angles: dict[str, Tensor] = field(default_factory=dict)  # by rotated group, V×B: positions in its set, on the CPU
    clean: Tensor | None = None  # B×C×S×S: the image itself, resized, flipped at random, normalized
    seed: int = 0
    step: int = 0
    total: int = 0  # images of the batch over all processes
    rows: slice = field(default_factory=lambda: slice(None))  # which of them are here
    micro: int = 0  # number of the micro-batch

    def micro_batches(self, count: int) -> list[Views]:
        """The same views in `count` micro-batches."""
        if count == 1:
            return [self]
        size, first = len(self.index) // count, self.rows.start or 0
        cuts = [slice(k * size, (k + 1) * size) for k in range(count)]
        return [
            replace(
                self,
                index=self.index[cut],
                pixels={name: x[:, cut] for name, x in self.pixels.items()},
                angles={name: x[:, cut] for name, x in self.angles.items()},
                clean=None if self.clean is None else self.clean[cut],
                rows=slice(first + cut.start, first + cut.stop),
                micro=k,
            )
            for k, cut in enumerate(cuts)
        ]

    def generator(self, purpose: str) -> torch.Generator:
        """The random numbers of one purpose in this step, for the whole batch over all ranks.

        The names of view groups are taken: they name the random numbers of the views themselves.
        """
        if purpose in (*self.pixels, "clean"):
            raise ValueError(f"{purpose!r} names the random numbers of the views themselves; choose another purpose")
        return generator(self.seed, purpose, self.step)
