"""Agreement of neighbors: from 0 to 100, chance for arbitrary features, and high for features of the content."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.data import ArrayImages
from effssl.features.agreement import agreement, chance_agreement, image_pairs


@pytest.fixture(scope="module")
def tiles(tiny_photos: Tensor) -> ArrayImages:
    return ArrayImages(tiny_photos)


def test_it_is_that_of_a_plain_search() -> None:
    plain, changed = torch.randn(2, 30, 5, generator=torch.Generator().manual_seed(0))

    def nearest(x: Tensor, row: int) -> set[int]:
        cosine = F.cosine_similarity(x[row], x, dim=1)
        return set(cosine.argsort(descending=True).tolist()[1:4])

    shared = [len(nearest(plain, row) & nearest(changed, row)) / 3 for row in range(30)]
    assert agreement(plain, changed, 3) == pytest.approx(100 * sum(shared) / 30)
    assert agreement(plain, 7 * plain, 3) == 100


def test_arbitrary_features_agree_by_chance() -> None:
    plain, changed = torch.randn(2, 500, 16, generator=torch.Generator().manual_seed(0))
    assert agreement(plain, changed) == pytest.approx(chance_agreement(500), abs=1)
    assert agreement(torch.ones(500, 8), changed) < 5  # all images alike: whatever neighbors it has are arbitrary


def test_pairs_are_the_same_each_time_and_show_the_same_images(tiles: ArrayImages) -> None:
    pairs, again = image_pairs(tiles, 24), image_pairs(tiles, 24)
    assert torch.equal(pairs.changed.pixels, again.changed.pixels)
    assert torch.equal(pairs.plain.pixels, tiles.pixels)
    assert len(image_pairs(tiles, 24, most=100)) == 100
    assert not torch.equal(pairs.changed.pixels, tiles.pixels)
    means = [x.pixels.float().mean((2, 3)) for x in (pairs.plain, pairs.changed)]
    contents = [F.normalize(mean - mean.mean(0), dim=1) for mean in means]
    assert float((contents[0] * contents[1]).sum(1).mean()) > 0.3  # a changed copy resembles its image


def test_features_agree_less_the_more_a_change_moves_them() -> None:
    plain, noise = torch.randn(2, 300, 16, generator=torch.Generator().manual_seed(0))
    found = [agreement(plain, plain + share * noise) for share in (0.05, 0.3, 1.0, 5.0)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 80
    assert found[-1] < 20
