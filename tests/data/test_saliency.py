from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from effssl.augment.crop import NUMBERS, box_parameters, boxes
from effssl.augment.options import Augment, ViewGroup
from effssl.data import ArrayImages
from effssl.data.loader import Batching, ViewLoader, ViewSpec
from effssl.data.saliency import SaliencyMaps
from effssl.runtime.errors import RequestError
from tests.data.recorded import RecordedImages

SIZES = torch.tensor([[48, 64]]).expand(200, 2)


@pytest.fixture
def maps() -> Tensor:
    return torch.rand(200, 8, 8, generator=torch.Generator().manual_seed(0))


def tries(count: int = 10) -> list[Tensor]:
    g = torch.Generator().manual_seed(1)
    ratio = (0.75, 4 / 3)
    drawn = torch.rand(count, 200, NUMBERS, generator=g, dtype=torch.float64)
    return [boxes(SIZES, box_parameters(u, (0.1, 0.6), ratio), ratio) for u in drawn]


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


def requested_boxes(images: ArrayImages, config: Augment, views: int = 1, epochs: int = 1) -> Tensor:
    """The boxes of the large views of whole epochs of one step each, epochs×N×views×4, images in order."""
    recorded = RecordedImages(images.pixels)
    spec = ViewSpec(
        config, {"large": ViewGroup(count=views), "small": ViewGroup(count=1, size=16, scale=(0.1, 0.2))}, 32
    )
    loader = ViewLoader(recorded, spec, Batching(len(images), 0), torch.device("cpu"))
    for epoch in range(epochs):
        list(loader.epoch(epoch))
    found = torch.empty(epochs, len(images), views, 4)
    for epoch, request in enumerate(recorded.requests):
        found[epoch, request.rows] = request.groups["large"].boxes.view(-1, views, 4).float()
    return found


def store(images: ArrayImages, path: Path) -> str:
    """Maps that are bright in the upper left only."""
    bright = np.zeros((len(images), 8, 8), np.float16)
    bright[:, :3, :3] = 1
    np.savez(path, maps=bright, fingerprint=images.fingerprint())
    return str(path)


def test_training_crops_follow_stored_maps(photos: Tensor, tmp_path: Path) -> None:
    """Crops move to the upper left, where the maps are bright; with share 0 they do not."""
    images = ArrayImages(photos)
    maps = store(images, tmp_path / "maps.npz")

    def mean_position(share: float) -> float:
        config = Augment(scale=(0.1, 0.3), saliency=maps, saliency_share=share)
        return float(requested_boxes(images, config, epochs=10)[..., :2].mean())

    all_of_them, half, none = (mean_position(share) for share in (1.0, 0.5, 0.0))
    assert all_of_them < none - 8
    assert half == pytest.approx((all_of_them + none) / 2, abs=3)


def test_maps_of_other_images_are_refused(photos: Tensor, tmp_path: Path) -> None:
    np.savez(tmp_path / "maps.npz", maps=np.zeros((64, 8, 8)), fingerprint="0123")
    with pytest.raises(RequestError, match="other images"):
        SaliencyMaps.open(str(tmp_path / "maps.npz"), ArrayImages(photos))
    with pytest.raises(RequestError, match="effssl saliency"):
        SaliencyMaps.open(str(tmp_path / "none.npz"), ArrayImages(photos))
    np.savez(tmp_path / "features.npz", features=np.zeros((64, 8)))
    with pytest.raises(RequestError, match="it has no array named fingerprint or maps"):
        SaliencyMaps.open(str(tmp_path / "features.npz"), ArrayImages(photos))


@pytest.mark.parametrize("by", ["sample", "crop", "image"])
def test_a_share_of_samples_crops_or_images_is_chosen(photos: Tensor, tmp_path: Path, by: str) -> None:
    images = ArrayImages(photos)
    maps = store(images, tmp_path / "maps.npz")

    def boxes_of(share: float) -> Tensor:
        config = Augment(scale=(0.1, 0.3), saliency=maps, saliency_share=share, saliency_by=by)
        return requested_boxes(images, config, views=2, epochs=2)

    none, half, everything = (boxes_of(share) for share in (0.0, 0.5, 1.0))
    visible = (everything != none).any(-1)  # 2×N×2: where one can see whether a box was chosen by saliency
    chosen = (half != none).any(-1)
    assert visible.float().mean() > 0.8
    assert 0.3 < chosen[visible].float().mean() < 0.7
    both = visible.all(-1)
    assert torch.equal(chosen[..., 0][both], chosen[..., 1][both]) == (by != "crop")
    later = visible[0] & visible[1]
    assert torch.equal(chosen[0][later], chosen[1][later]) == (by == "image")


def test_small_crops_are_not_chosen_by_saliency(photos: Tensor, tmp_path: Path) -> None:
    """A group with a scale of its own takes random crops: the same with maps and without."""
    images = RecordedImages(photos)
    maps = store(images, tmp_path / "maps.npz")
    for saliency in ("", maps):
        spec = ViewSpec(Augment(saliency=saliency), {"small": ViewGroup(count=2, size=16, scale=(0.05, 0.14))}, 32)
        next(ViewLoader(images, spec, Batching(64, 0), torch.device("cpu")).epoch(0))
    without, with_maps = (request.groups["small"].boxes for request in images.requests)
    assert torch.equal(without, with_maps)
