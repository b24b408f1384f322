"""Jigsaw: predict in which of 100 ways nine patches of an image were shuffled. Noroozi & Favaro 2016."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effssl.augment.color import to_gray
from effssl.network.network import Network
from effssl.objectives.options import JigsawOptions
from effssl.objectives.step import Step, frozen_statistics
from effssl.objectives.term import Outcome, RunInfo, Term
from effssl.runtime.errors import RequestError
from effssl.runtime.randomness import seed_of

GRID, SMALLEST = 3, 64
PATCH = 64 / 85  # side of a patch over side of a cell; the gap keeps edges from giving the order away


@cache
def far_permutations(count: int, seed: int = 0) -> Tensor:
    """`count` permutations of nine, far apart: each next one has the largest mean Hamming distance to those before.

    Greedy from a seeded random start, so the same seed gives the same set everywhere.
    """
    every = np.array(list(itertools.permutations(range(GRID * GRID))), dtype=np.uint8)  # 362,880×9
    chosen = [int(np.random.default_rng(seed_of(seed, "jigsaw")).integers(len(every)))]
    distance = np.zeros(len(every), dtype=np.int32)
    for _ in range(count - 1):
        distance += (every != every[chosen[-1]]).sum(1)
        distance[chosen[-1]] = -(10**6)  # taken
        chosen.append(int(distance.argmax()))
    return torch.from_numpy(every[chosen].astype(np.int64))


def cut_patches(x: Tensor, offsets: Tensor) -> Tensor:
    """Nine patches per image, N×9×C×p×p, row by row; offsets N×9×2 in [0, 1) place each inside its cell."""
    n, channels, side, _ = x.shape
    cell = side // GRID
    size = round(cell * PATCH)
    start = (offsets * (cell - size + 1)).long()  # N×9×2
    corner = torch.cartesian_prod(torch.arange(GRID), torch.arange(GRID)) * cell  # 9×2
    first = (start + corner).view(-1, 2)  # (N·9)×2
    line = torch.arange(size)
    rows, columns = (first[:, k : k + 1] + line for k in (0, 1))  # (N·9)×p
    image = torch.arange(n).repeat_interleave(GRID * GRID)
    index = [
        part.to(x.device, non_blocking=True) for part in (image[:, None, None], rows[:, :, None], columns[:, None, :])
    ]
    patches = x.permute(0, 2, 3, 1)[index[0], index[1], index[2]]  # (N·9)×p×p×C
    return patches.permute(0, 3, 1, 2).reshape(n, GRID * GRID, channels, size, size)


class Jigsaw(Term):
    """Cross-entropy over permutations; each patch goes through f alone, and the head reads all nine features."""

    reads = ("clean",)

    def __init__(self, options: JigsawOptions, network: Network, info: RunInfo) -> None:
        super().__init__(options, network, info)
        if info.image_size < SMALLEST:
            raise RequestError(
                f"jigsaw cuts images into nine patches and needs an --image-size of at least {SMALLEST}, "
                f"not {info.image_size}"
            )
        self.permutations = far_permutations(options.permutations, options.seed)
        self.reduce = nn.Sequential(
            nn.Linear(network.h_dim, options.hidden, bias=False), nn.BatchNorm1d(options.hidden), nn.ReLU(inplace=True)
        )
        self.classifier = nn.Linear(GRID * GRID * options.hidden, options.permutations)

    def loss(self, step: Step) -> Outcome:
        label, patches = self.puzzles(step)
        flat = patches.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        with frozen_statistics(step.network, not self.options.update_stats):
            features = step.run(self.reduce, step.run(step.network.f, flat))  # (B·9)×hidden
        logits = step.run(self.classifier, features.view(len(label), -1))
        label = label.to(logits.device, non_blocking=True)
        accuracy = (logits.detach().argmax(1) == label).float().mean()
        return Outcome(F.cross_entropy(logits, label), accuracy, chance=1 / self.options.permutations)

    def puzzles(self, step: Step) -> tuple[Tensor, Tensor]:
        """The number of each image's permutation, B, and its nine patches in that order, B×9×C×p×p."""
        views, options = step.views, self.options
        assert views.clean is not None
        channels = views.clean.shape[1]
        g = views.generator("jigsaw")
        offsets = torch.rand(views.total, GRID * GRID, 2, generator=g)[views.rows]
        label = torch.randint(options.permutations, (views.total,), generator=g)[views.rows]
        gray = (torch.rand(views.total, generator=g) < options.gray)[views.rows]
        shift = torch.randint(-options.shift, options.shift + 1, (views.total, GRID * GRID, channels), generator=g)[
            views.rows
        ]
        x = views.clean
        if channels == 3:
            rows = gray.nonzero().squeeze(1).to(x.device, non_blocking=True)
            x = x.index_copy(0, rows, to_gray(x.index_select(0, rows)).expand(-1, 3, -1, -1))
        patches = cut_patches(x, offsets)
        # A tint per patch, so that chromatic aberration does not reveal neighbors.
        tint = (shift / 255 / 0.25)[..., None, None].to(x.device, non_blocking=True)
        order = self.permutations[label].to(x.device, non_blocking=True)  # B×9
        return label, (patches + tint).gather(1, order[:, :, None, None, None].expand_as(patches))
