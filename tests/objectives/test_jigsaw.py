"""Permutations, patches, and the puzzle in a sum."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from effssl.data import ArrayImages, Data
from effssl.objectives.jigsaw import cut_patches, far_permutations
from effssl.runtime.errors import RequestError
from tests.objectives.making import first_views, make


def test_permutations_are_far_apart_and_reproducible() -> None:
    perms = far_permutations(100)
    assert torch.equal(perms.sort(1).values, torch.arange(9).expand(100, 9))
    assert len({tuple(p) for p in perms.tolist()}) == 100
    distance = (perms[:, None] != perms[None]).sum(2).float()
    assert distance.sum() / (100 * 99) > 7.9  # random permutations: 8 on average, these: more
    drawn = torch.stack([torch.randperm(9, generator=torch.Generator().manual_seed(s)) for s in range(100)])
    random_distance = (drawn[:, None] != drawn[None]).sum(2).float()
    off = ~torch.eye(100, dtype=torch.bool)
    assert distance[off].mean() > random_distance[off].mean() + 0.05
    assert distance[off].min() >= 2
    assert not torch.equal(perms, far_permutations(100, seed=1))


def test_patches_lie_in_their_cells(photos: Tensor) -> None:
    x = photos[:4].float()
    zero = torch.zeros(4, 9, 2)
    patches = cut_patches(x, zero)
    assert patches.shape == (4, 9, 3, 24, 24)  # 96 px: cells of 32, patches of 24
    for k in range(9):
        top, left = 32 * (k // 3), 32 * (k % 3)
        assert torch.equal(patches[:, k], x[:, :, top : top + 24, left : left + 24])
    last = cut_patches(x, zero + 0.999)
    assert torch.equal(last[:, 8], x[:, :, 72:96, 72:96])


def test_jigsaw_trains_and_refuses_small_images(photos: Tensor, data: Data) -> None:
    big = Data("photos", ArrayImages(photos, torch.arange(64) % 4, list("abcd")))
    objective = make("byol+jigsaw+rotation", big, image_size=64)
    views = first_views(big, "byol+jigsaw+rotation", image_size=64)
    assert views.clean is not None
    outcome = objective.outcomes(views)["jigsaw"]
    assert outcome.chance == 0.01
    assert outcome.accuracy is not None
    assert float(outcome.loss) == pytest.approx(math.log(100), abs=0.6)
    with pytest.raises(RequestError, match="at least 64"):
        make("byol+jigsaw", data)


def test_patches_leave_running_statistics_alone_if_told(photos: Tensor) -> None:
    big = Data("photos", ArrayImages(photos, torch.arange(64) % 4, list("abcd")))
    views = first_views(big, "byol+jigsaw", image_size=64)

    def statistics(objective: str, **flags: object) -> Tensor:
        made = make(objective, big, image_size=64, **flags)
        made.outcomes(views)
        return torch.cat([b.flatten() for n, b in made.network.encoder.named_buffers() if "running" in n])

    base = statistics("byol")
    assert torch.equal(statistics("byol+jigsaw", jigsaw={"update_stats": False}), base)
    assert not torch.equal(statistics("byol+jigsaw"), base)
