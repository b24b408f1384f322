from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from effssl.augment.crop import NUMBERS, box_numbers, boxes
from effssl.config import Augment
from effssl.data import ArrayImages
from effssl.data.loader import ViewLoader
from effssl.data.saliency import SaliencyMaps
from effssl.data.views import Needs
from effssl.runtime.errors import RequestError

SIZES = torch.tensor([[48, 64]]).expand(200, 2)


@pytest.fixture
def maps() -> Tensor:
    return torch.rand(200, 8, 8, generator=torch.Generator().manual_seed(0))


def tries(count: int = 10) -> list[Tensor]:
    g = torch.Generator().manual_seed(1)
    ratio = (0.75, 4 / 3)
    drawn = torch.rand(count, 200, NUMBERS, generator=g, dtype=torch.float64)
    return [boxes(SIZES, box_numbers(u, (0.1, 0.6), ratio), ratio) for u in drawn]


def test_box_means_equal_sums_over_pixels(maps: Tensor) -> None:
    """Each map cell is spread over 6×8 pixels; the mean over a box is the mean over its pixels."""
    big = maps.double().repeat_interleave(6, 1).repeat_interleave(8, 2)  # 48×64
    rows, box = torch.arange(200), tries(1)[0]
    mine = SaliencyMaps(maps).box_mean(rows, SIZES, box)
    for i, (top, left, height, width) in enumerate(box.tolist()):
        assert mine[i] == pytest.approx(float(big[i, top : top + height, left : left + width].mean()), abs=1e-9)


def test_the_first_good_box_is_taken_and_the_last_if_none_is(maps: Tensor) -> None:
    made, rows, drawn = SaliencyMaps(maps), torch.arange(200), tries()
    chosen = made.choose(rows, SIZES, drawn, torch.ones(200, dtype=torch.bool))
    for i in range(200):
        good = [b for b in drawn if made.box_mean(rows[i : i + 1], SIZES[:1], b[i : i + 1]) > made.mean[i]]
        expected = good[0][i] if good else drawn[-1][i]
        assert torch.equal(chosen[i], expected)
    unwanted = made.choose(rows, SIZES, drawn, torch.zeros(200, dtype=torch.bool))
    assert torch.equal(unwanted, drawn[-1])


def test_the_rule_does_not_change_under_affine_rescaling(maps: Tensor) -> None:
    rows, drawn, all_of_them = torch.arange(200), tries(), torch.ones(200, dtype=torch.bool)
    plain = SaliencyMaps(maps).choose(rows, SIZES, drawn, all_of_them)
    scaled = SaliencyMaps(7.5 * maps + 3).choose(rows, SIZES, drawn, all_of_them)
    assert torch.equal(plain, scaled)


def test_training_crops_follow_stored_maps(photos: Tensor, tmp_path: Path) -> None:
    """With maps that are bright in the upper left only, crops move there; with share 0 they do not."""
    images = ArrayImages(photos)
    bright = np.zeros((64, 8, 8), np.float16)
    bright[:, :3, :3] = 1
    np.savez(tmp_path / "maps.npz", maps=bright, fingerprint=images.fingerprint())

    def mean_position(share: float) -> float:
        config = Augment(scale=(0.1, 0.3), saliency=str(tmp_path / "maps.npz"), saliency_share=share)
        loader = ViewLoader(images, config, Needs(large=1), 64, 32, 0, torch.device("cpu"))
        box = [loader.boxes(loader.kinds[0], loader.draws([s])[0], [s], torch.arange(64)).float() for s in range(10)]
        return float(torch.cat(box)[:, :2].mean())

    assert mean_position(1.0) < mean_position(0.0) - 8
    assert mean_position(0.0) - 8 < mean_position(0.5) + 4 < mean_position(0.0) + 4


def test_maps_of_other_images_are_refused(photos: Tensor, tmp_path: Path) -> None:
    np.savez(tmp_path / "maps.npz", maps=np.zeros((64, 8, 8)), fingerprint="0123")
    with pytest.raises(RequestError, match="other images"):
        SaliencyMaps.open(str(tmp_path / "maps.npz"), ArrayImages(photos))
    with pytest.raises(RequestError, match="effssl saliency"):
        SaliencyMaps.open(str(tmp_path / "none.npz"), ArrayImages(photos))


@pytest.mark.parametrize("by", ["sample", "crop", "image"])
def test_a_share_of_samples_crops_or_images_is_chosen(photos: Tensor, tmp_path: Path, by: str) -> None:
    images = ArrayImages(photos)
    np.savez(tmp_path / "maps.npz", maps=np.ones((len(images), 4, 4), np.float32), fingerprint=images.fingerprint())
    config = Augment(saliency=str(tmp_path / "maps.npz"), saliency_share=0.5, saliency_by=by)
    loader = ViewLoader(images, config, Needs(large=2), 32, 32, 0, torch.device("cpu"))
    rows = torch.arange(32).repeat_interleave(2)  # two views of each image
    first, second = loader._good_crops(loader.kinds[0], [0], rows).view(32, 2).T
    later = loader._good_crops(loader.kinds[0], [1], rows)[::2]
    assert 4 < int(first.sum()) < 28
    assert torch.equal(first, second) == (by != "crop")
    assert torch.equal(first, later) == (by == "image")
    both = loader._good_crops(loader.kinds[0], [0, 1], rows.repeat(2)).view(2, 32, 2)[..., 0]
    assert torch.equal(both, torch.stack([first, later]))
