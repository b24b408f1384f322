"""The views of a batch: layout, copies, rotation, and micro-batches."""

from __future__ import annotations

import pytest
import torch
import torchvision.transforms.v2.functional as reference
from torch import Tensor

from effssl.augment.options import Augment, ViewGroup
from effssl.augment.rotate import rotate
from effssl.data import ArrayImages
from effssl.data.loader import Batching, ViewLoader, ViewSpec
from effssl.data.views import Views
from effssl.runtime.randomness import generator

CPU = torch.device("cpu")
LARGE = ViewGroup(count=2)


def views_of(photos: Tensor, groups: dict[str, ViewGroup], step: int = 0, clean: bool = False, **flags) -> Views:
    loader = ViewLoader(ArrayImages(photos), ViewSpec(Augment(**flags), groups, 32, clean), Batching(16, 7), CPU)
    return list(loader.epoch(0))[step]


@pytest.mark.parametrize(
    "group",
    [
        ViewGroup(count=3),
        ViewGroup(count=2, rotated=True),
        ViewGroup(count=2, rotated=True, angles=(0.0, 30.0)),
        ViewGroup(count=2, rotated=True, every_angle=True),
        ViewGroup(count=1, copy_of="large"),
        ViewGroup(count=2, copy_of="large", size=0.5),
        ViewGroup(count=2, copy_of="large", size=0.5, rotated=True, angles=(0.0, 45.0), every_angle=True),
    ],
)
def test_all_views_of_a_group_are_one_channels_last_batch(photos: Tensor, group: ViewGroup) -> None:
    x = views_of(photos, {"large": LARGE, "other": group}).pixels["other"]
    side = group.side(32)
    assert x.shape == (group.views, 16, 3, side, side)
    together = x.flatten(0, 1)
    assert together.data_ptr() == x.data_ptr()  # not a copy
    assert together.is_contiguous(memory_format=torch.channels_last)
    assert x[0].is_contiguous(memory_format=torch.channels_last)


def test_a_group_changes_no_other_one(photos: Tensor) -> None:
    small = ViewGroup(count=2, size=16, scale=(0.05, 0.14))
    alone = views_of(photos, {"large": LARGE}).pixels["large"]
    beside = views_of(photos, {"small": small, "large": LARGE}, clean=True).pixels
    assert torch.equal(alone, beside["large"])
    assert torch.equal(beside["small"], views_of(photos, {"small": small}).pixels["small"])
    assert list(beside) == ["small", "large"]


def test_groups_have_crops_of_their_own(photos: Tensor) -> None:
    pixels = views_of(photos, {"large": LARGE, "target": LARGE}).pixels
    assert not torch.equal(pixels["large"], pixels["target"])


def test_a_copy_is_the_finished_view(photos: Tensor) -> None:
    groups = {"copy": ViewGroup(count=1, copy_of="large"), "large": LARGE}
    pixels = views_of(photos, groups, blur=(0.5,)).pixels
    assert torch.equal(pixels["copy"], pixels["large"][:1])


def test_a_smaller_copy_is_resized_antialiased(photos: Tensor) -> None:
    pixels = views_of(photos, {"large": LARGE, "copy": ViewGroup(count=2, copy_of="large", size=0.5)}).pixels
    expected = reference.resize(pixels["large"].flatten(0, 1), [16, 16], antialias=True)
    assert torch.allclose(pixels["copy"].flatten(0, 1), expected, atol=1e-5)


@pytest.mark.parametrize("angles", [(0.0, 90.0, 180.0, 270.0), (0.0, 180.0), (0.0, 30.0, 60.0)])
def test_a_rotated_copy_is_rotated_by_its_angles(photos: Tensor, angles: tuple[float, ...]) -> None:
    group = ViewGroup(count=2, copy_of="large", rotated=True, angles=angles)
    views = views_of(photos, {"large": LARGE, "rotated": group}, step=1)
    positions = views.angles["rotated"]
    drawn = torch.randint(len(angles), (2, 16), generator=generator(7, "rotated angles", 1))
    assert torch.equal(positions, drawn)
    for v in range(2):
        assert torch.equal(views.pixels["rotated"][v], rotate(views.pixels["large"][v], positions[v], angles))


def test_a_rotated_group_is_its_own_crops_rotated(photos: Tensor) -> None:
    plain = views_of(photos, {"rotated": ViewGroup(count=2, scale=(0.3, 0.9))})
    views = views_of(photos, {"rotated": ViewGroup(count=2, scale=(0.3, 0.9), rotated=True)})
    for v in range(2):
        turned = rotate(plain.pixels["rotated"][v], views.angles["rotated"][v], ViewGroup().angles)
        assert torch.equal(views.pixels["rotated"][v], turned)
    assert plain.angles == {}


def test_every_angle_of_each_view(photos: Tensor) -> None:
    group = ViewGroup(count=2, copy_of="large", rotated=True, every_angle=True)
    views = views_of(photos, {"large": LARGE, "rotated": group})
    assert views.angles["rotated"].tolist() == [[k] * 16 for k in (0, 0, 1, 1, 2, 2, 3, 3)]
    for k in range(4):
        expected = torch.rot90(views.pixels["large"], k, (3, 4))
        assert torch.equal(views.pixels["rotated"][2 * k : 2 * k + 2], expected)


def test_a_share_of_the_views_stays_upright(photos: Tensor) -> None:
    images = photos[:, :, :16, :16].repeat(10, 1, 1, 1)

    def positions(upright: float) -> Tensor:
        group = ViewGroup(count=2, rotated=True, upright=upright)
        loader = ViewLoader(ArrayImages(images), ViewSpec(Augment(), {"rotated": group}, 8), Batching(640, 0), CPU)
        return next(loader.epoch(0)).angles["rotated"]

    assert not positions(1.0).any()
    some, none = positions(0.5), positions(0.0)
    assert (none == 0).float().mean() == pytest.approx(0.25, abs=0.04)
    assert (some == 0).float().mean() == pytest.approx(0.5 + 0.5 * 0.25, abs=0.04)
    assert torch.equal(some[some > 0], none[some > 0])  # the others keep the angle that was drawn


def test_the_clean_view_is_the_image_up_to_a_flip(photos: Tensor) -> None:
    small = photos[:, :, :32, :32]
    plain = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    views = views_of(small, {}, clean=True, blur=(1.0,), **plain)
    assert views.clean is not None
    assert views.pixels == {}
    flipped = 0
    for x, row in zip(views.clean, views.index, strict=True):
        image = small[row] / 255
        assert torch.allclose(x, image, atol=1e-6) or torch.allclose(x, image.flip(-1), atol=1e-6)
        flipped += not torch.allclose(x, image, atol=1e-6)
    assert 2 < flipped < 14


def test_micro_batches_are_the_batch_in_parts(photos: Tensor) -> None:
    groups = {"large": LARGE, "rotated": ViewGroup(count=2, copy_of="large", rotated=True)}
    views = views_of(photos, groups, clean=True)
    assert views.micro_batches(1) == [views]
    parts = views.micro_batches(4)
    assert [part.micro for part in parts] == [0, 1, 2, 3]
    assert [part.rows for part in parts] == [slice(0, 4), slice(4, 8), slice(8, 12), slice(12, 16)]
    assert torch.equal(torch.cat([part.index for part in parts]), views.index)
    assert torch.equal(torch.cat([part.clean for part in parts]), views.clean)
    for name in groups:
        assert torch.equal(torch.cat([part.pixels[name] for part in parts], 1), views.pixels[name])
    assert torch.equal(torch.cat([part.angles["rotated"] for part in parts], 1), views.angles["rotated"])


def test_streams_of_the_views_are_reserved(photos: Tensor) -> None:
    views = views_of(photos, {"large": LARGE}, step=2)
    assert views.step == 2
    numbers = torch.rand(3, generator=views.generator("noise"))
    assert torch.equal(numbers, torch.rand(3, generator=generator(7, "noise", 2)))
    for purpose in ("large", "clean"):
        with pytest.raises(ValueError, match="choose another purpose"):
            views.generator(purpose)
