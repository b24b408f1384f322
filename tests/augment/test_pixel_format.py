"""Views of other channels than red, green and blue."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from effssl.augment.options import Augment, ViewGroup
from effssl.augment.pixel_format import PixelFormat
from effssl.data import ArrayImages
from effssl.data.loader import Batching, ViewLoader, ViewSpec
from effssl.runtime.errors import RequestError

CPU = torch.device("cpu")
FIVE = PixelFormat(5)
GEOMETRY = Augment(jitter=0, gray=0, blur=(0.5,), solarize=(0.3,), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
GROUPS = {"large": ViewGroup(count=2), "rotated": ViewGroup(count=1, copy_of="large", rotated=True)}


def of_five(augment: Augment) -> Augment:
    return replace(augment, pixels=FIVE, mean=(*augment.mean, 0.5, 0.5), std=(*augment.std, 0.25, 0.25))


@pytest.fixture(scope="module")
def five(photos: Tensor) -> ArrayImages:
    """Photographs with two channels more: their red upside down, and a constant."""
    more = [photos[:, :1].flip(2), torch.full_like(photos[:, :1], 128)]
    return ArrayImages(torch.cat([photos, *more], 1), pixel_format=FIVE)


def views(images: ArrayImages, augment: Augment, size: int = 48, clean: bool = False):
    loader = ViewLoader(images, ViewSpec(augment, GROUPS, size, clean), Batching(32, 3), CPU)
    return next(loader.epoch(0))


@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
def test_the_first_three_of_five_channels_are_the_views_of_rgb(photos: Tensor, five: ArrayImages, filter: str) -> None:
    plain = replace(GEOMETRY, filter=filter)
    rgb, more = views(ArrayImages(photos), plain, clean=True), views(five, of_five(plain), clean=True)
    assert torch.equal(rgb.angles["rotated"], more.angles["rotated"])
    for name, x in rgb.pixels.items():
        assert more.pixels[name].shape[2] == 5
        assert (more.pixels[name][:, :, :3] - x).abs().max() < 1e-4
    assert (more.clean[:, :3] - rgb.clean).abs().max() < 1e-4


@pytest.mark.parametrize("depth", ["uint16", "float32"])
def test_other_depths_give_the_views_of_8_bits(photos: Tensor, depth: str) -> None:
    limits = {"uint16": (0.0, 65535.0), "float32": (-3.0, 7.0)}[depth]
    deep = (photos.double() / 255 * (limits[1] - limits[0]) + limits[0]).to(getattr(torch, depth))
    images = ArrayImages(deep, pixel_format=PixelFormat(3, depth, limits))
    augment = replace(GEOMETRY, pixels=images.pixel_format)
    expected, found = views(ArrayImages(photos), GEOMETRY), views(images, augment)
    assert (found.pixels["large"] - expected.pixels["large"]).abs().max() < 1e-4


def test_jitter_by_channel_scales_each_channel_about_its_mean(photos: Tensor, five: ArrayImages) -> None:
    plain = of_five(replace(GEOMETRY, blur=(0.0,), solarize=(0.0,), mean=(0.0,) * 3, std=(1.0,) * 3))
    plain = replace(plain, mean=(0.0,) * 5, std=(1.0,) * 5)
    strong = replace(plain, jitter=1.0, brightness=0.5, contrast=0.5)
    before, after = (views(five, augment).pixels["large"][0] for augment in (plain, strong))
    assert strong.by_channel
    mean = [x.mean((2, 3)) for x in (before, after)]
    brightness = mean[1] / mean[0]
    assert ((brightness > 0.49) & (brightness < 1.51)).all()
    assert (brightness[:, 0] - brightness[:, 1]).abs().mean() > 0.1  # each channel by itself
    spread = [x.flatten(2).std(2)[:, :4] for x in (before, after)]
    contrast = spread[1] / spread[0] / brightness[:, :4]
    assert ((contrast > 0.45) & (contrast < 1.55)).all()
    assert not torch.equal(before, after)


def test_channel_dropout_blanks_whole_channels_and_leaves_one(five: ArrayImages) -> None:
    augment = replace(of_five(GEOMETRY), channel_dropout=0.9)
    x = views(five, augment).pixels["large"].flatten(0, 1)  # N×5×S×S
    blank = (x == 0).all(3).all(2)
    assert 0.6 < float(blank.float().mean()) < 0.9
    assert int(blank.sum(1).max()) == 4


def test_dropout_of_rgb_leaves_crops_as_they_are(photos: Tensor) -> None:
    images = ArrayImages(photos)
    plain, dropped = views(images, Augment()), views(images, Augment(channel_dropout=0.5))
    kept = dropped.pixels["large"] != 0
    assert torch.equal(plain.pixels["large"][kept], dropped.pixels["large"][kept])
    assert 0.3 < float(kept.float().mean()) < 0.7


def test_one_two_and_thirty_two_channels(photos: Tensor) -> None:
    for channels in (1, 2, 32):
        pixels = photos.repeat(1, 11, 1, 1)[:, :channels].contiguous()
        images = ArrayImages(pixels, pixel_format=PixelFormat(channels))
        augment = Augment(pixels=images.pixel_format, mean=(0.5,) * channels, std=(0.2,) * channels, blur=(0.5,))
        assert views(images, augment, 24).pixels["rotated"].shape == (1, 32, channels, 24, 24)
        assert images.image(0).mode == "RGB"


def test_channels_to_show_are_checked() -> None:
    assert PixelFormat(12, shown=(8, 4, 3)).shown_channels() == (7, 3, 2)
    assert PixelFormat(12, shown=(5,)).shown_channels() == (4, 4, 4)
    with pytest.raises(RequestError, match="of 1 to 12"):
        PixelFormat(12, shown=(13, 1, 1)).shown_channels()
    with pytest.raises(ValueError, match="3 channels of uint8 are not 5 channels of uint8"):
        ArrayImages(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), pixel_format=FIVE)
