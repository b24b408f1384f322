"""Each batched operation equals torchvision's functional one for the same parameters, on photographs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms.v2.functional as reference
from torch import Tensor

from effssl.augment import color, crop
from effssl.augment.changes.blur import gaussian_blur
from effssl.augment.changes.solarize import solarize
from effssl.augment.rotate import rotate, rotate_and_crop, rotate_quarters, valid_share

TOLERANCE = 2 / 255


def per_image(function, images: Tensor, *parameters: Tensor) -> Tensor:
    rows = [function(image, *(p[i].item() for p in parameters)) for i, image in enumerate(images)]
    return torch.stack(rows)


def box_parameters(count: int, scale: tuple[float, float], ratio: tuple[float, float]) -> Tensor:
    g = torch.Generator().manual_seed(0)
    return crop.box_parameters(torch.rand(count, crop.NUMBERS, generator=g, dtype=torch.float64), scale, ratio)


def uniform(low: float, high: float, count: int = 64) -> Tensor:
    return low + (high - low) * torch.rand(count, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [16, 32, 96, 150])
def test_crop_equals_antialiased_resized_crop(photos: Tensor, name: str, size: int) -> None:
    parameters = box_parameters(64, (0.05, 1.0), (0.5, 2.0))
    box = crop.boxes(torch.tensor([[96, 96]]).expand(64, 2), parameters, (0.5, 2.0))
    flip = torch.arange(64) % 2 == 0
    mine = crop.crop_resize(photos, box, size, flip, name)
    mode = reference.InterpolationMode(name)
    for i, (image, b) in enumerate(zip(photos.float(), box.tolist(), strict=True)):
        one = reference.resized_crop(image, *b, [size, size], interpolation=mode, antialias=True)
        if flip[i]:
            one = reference.horizontal_flip(one)
        assert (mine[i] - one).abs().max() < 0.01  # of 255


@pytest.mark.parametrize("size", [32, 120])
def test_several_boxes_per_image_are_cut_as_if_alone(photos: Tensor, size: int) -> None:
    """Also from images that are not square, where rows and columns have filters of their own."""
    for images in (photos[:8], photos[:8, :, :60]):
        box = crop.boxes(
            torch.tensor([images.shape[-2:]]).expand(24, 2), box_parameters(24, (0.1, 1.0), (0.5, 2.0)), (0.5, 2.0)
        )
        flip = torch.arange(24) % 2 == 0
        together = crop.crop_resize(images, box, size, flip).view(8, 3, 3, size, size).transpose(1, 2)
        for k in range(3):
            assert torch.allclose(together[:, k], crop.crop_resize(images, box[k::3], size, flip[k::3]), atol=1e-3)


@pytest.mark.parametrize("size", [16, 40])
def test_images_of_a_user_stay_as_they_are(photos: Tensor, size: int) -> None:
    images = photos[:2, :, :20, :30].float()
    before = images.clone()
    whole = torch.tensor([[0, 0, 20, 30]]).expand(2, 4)
    assert crop.crop_resize(images, whole, size, factor=0.5).max() < 128
    assert torch.equal(images, before)


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
def test_beyond_its_edge_an_image_is_black(name: str) -> None:
    """Also where only the negative part of a cubic filter still reaches the image."""
    gray = torch.full((1, 3, 32, 32), 200, dtype=torch.uint8)
    x = crop.crop_resize(gray, torch.tensor([[0, -8, 32, 32]]), 16, filter=name).clamp(0, 255)
    assert (x[..., :3] == 0).all()
    assert torch.allclose(x[..., 5:], torch.tensor(200.0))


def test_resize_equals_antialiased_resize(photos: Tensor) -> None:
    assert torch.allclose(
        crop.resize(photos, 20), reference.resize(photos.float(), [20, 20], antialias=True), atol=0.01
    )


@pytest.mark.parametrize("size", [(96, 96), (40, 200), (300, 17), (2, 2)])
def test_boxes_follow_the_rule(size: tuple[int, int]) -> None:
    scale, ratio, n = (0.2, 1.0), (0.75, 4 / 3), 4000
    parameters = box_parameters(n, scale, ratio)
    top, left, height, width = crop.boxes(torch.tensor([size]).expand(n, 2), parameters, ratio).unbind(1)
    assert (height >= 1).all()
    assert (width >= 1).all()
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= size[0]).all()
    assert (left + width <= size[1]).all()
    if size == (96, 96):
        area = (height * width) / (96 * 96)
        assert area.min() > 0.18
        assert abs(area.mean() - 0.57) < 0.03  # a little under 0.6: large elongated tries do not fit
        assert (top.float() / (96 - height).clamp(min=1)).mean().sub(0.5).abs() < 0.03
        assert {round(r, 1) for r in (width / height).tolist()} >= {0.8, 1.0, 1.3}
    if size == (40, 200):
        # No box of the allowed aspect has a fifth of this image's area more than 40 high: many take the center.
        assert ((width / height) <= 4 / 3 + 0.05).all()


def test_distribution_matches_torchvision() -> None:
    from torchvision.transforms.v2 import RandomResizedCrop

    torch.manual_seed(0)
    theirs = torch.tensor(
        [list(RandomResizedCrop(8, (0.2, 1.0)).make_params([torch.zeros(3, 50, 70)]).values())[:4] for _ in range(3000)]
    ).double()
    parameters = box_parameters(3000, (0.2, 1.0), (0.75, 4 / 3))
    mine = crop.boxes(torch.tensor([[50, 70]]).expand(3000, 2), parameters, (0.75, 4 / 3)).double()
    assert torch.allclose(mine.mean(0), theirs.mean(0), rtol=0.05, atol=0.5)
    assert torch.allclose(mine.std(0), theirs.std(0), rtol=0.08)


def changed(change: Callable, x: Tensor, factor: Tensor) -> Tensor:
    """A copy of images N×3×H×W, two views each of half as many images, after a change with N factors."""
    views = 2 if len(x) % 2 == 0 else 1
    y = x.view(-1, views, *x.shape[1:]).transpose(1, 2).flatten(3).contiguous()  # N/V×3×V×P
    change(y, factor.view(-1, 1, views, 1))
    return y.transpose(1, 2).reshape(x.shape)


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_color_blends(photos: Tensor, name: str) -> None:
    x, factor = photos.float() / 255, uniform(0.0, 2.0)
    mine = changed(getattr(color, f"{name}_"), x, factor)
    theirs = per_image(getattr(reference, f"adjust_{name}"), x, factor)
    assert (mine - theirs).abs().max() < TOLERANCE


def test_hue(photos: Tensor) -> None:
    x, shift = photos.float() / 255, uniform(-0.5, 0.5)
    assert (changed(color.hue_, x, shift) - per_image(reference.adjust_hue, x, shift)).abs().max() < TOLERANCE


def test_hue_of_grays_and_ties() -> None:
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 0.5, 1.0])] * 3).view(1, 27, 1, 3).permute(0, 3, 1, 2)
    for shift in (-0.5, -0.1, 0.0, 1 / 3, 0.5):
        assert torch.allclose(
            changed(color.hue_, corners, torch.tensor([shift])), reference.adjust_hue(corners, shift), atol=1e-5
        )


def test_grayscale_touches_only_the_chosen(photos: Tensor) -> None:
    x, rows = photos.float() / 255, torch.tensor([1, 5, 63])
    others = torch.tensor([i for i in range(64) if i not in (1, 5, 63)])
    gray = changed(color.grayscale_, x, torch.zeros(64).index_fill(0, rows, 1))
    assert (gray[rows] - reference.rgb_to_grayscale(x[rows], 3)).abs().max() < TOLERANCE
    assert torch.equal(gray[others], x[others])


def test_solarize(photos: Tensor) -> None:
    x = photos.float() / 255
    assert (solarize(x, 0.5) - reference.solarize(x, 0.5)).abs().max() < TOLERANCE


@pytest.mark.parametrize("kernel", [3, 9, 23])
def test_blur(photos: Tensor, kernel: int) -> None:
    x, sigma = photos.float() / 255, uniform(0.1, 2.0)
    theirs = per_image(lambda image, s: reference.gaussian_blur(image, [kernel, kernel], [s, s]), x, sigma)
    assert (gaussian_blur(x, sigma, kernel) - theirs).abs().max() < TOLERANCE


def test_normalize(photos: Tensor) -> None:
    x = photos.float() / 255
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    assert torch.allclose(
        color.normalize_(x.clone(), mean, std), reference.normalize(x, list(mean), list(std)), atol=1e-5
    )


def test_rotation_is_exact_counter_clockwise_and_four_make_the_identity(photos: Tensor) -> None:
    x, turns = photos.float(), torch.arange(64) % 4
    once = rotate_quarters(x, turns)
    for i in range(64):
        assert torch.equal(once[i], torch.rot90(x[i], int(turns[i]), (1, 2)))
    assert torch.allclose(once[1], reference.rotate(x[1:2], 90.0)[0])  # torchvision counts counter-clockwise too
    again = x
    for _ in range(4):
        again = rotate_quarters(again, torch.ones(64, dtype=torch.long))
    assert torch.equal(again, x)


@pytest.mark.parametrize("degrees", [45.0, 30.0, 120.0, 225.0])
def test_any_angle_equals_torchvision_inside_the_valid_square(photos: Tensor, degrees: float) -> None:
    """Rotate by torchvision, then crop the valid square and resize: the same image, up to sampling twice."""
    x = F.avg_pool2d(photos[:8].float() / 255, 5, 1, 2)  # smooth, so that sampling twice matters little
    share = valid_share(degrees)
    mine = rotate_and_crop(x, torch.full((8,), degrees), share)
    rotated = reference.rotate(x, degrees, interpolation=reference.InterpolationMode.BILINEAR)
    grid = F.affine_grid(torch.eye(2, 3).mul(share).expand(8, 2, 3), list(x.shape), align_corners=False)
    theirs = F.grid_sample(rotated, grid, mode="bilinear", align_corners=False)
    inner = (slice(None), slice(None), slice(2, -2), slice(2, -2))
    assert (mine[inner] - theirs[inner]).abs().max() < 0.06
    assert (mine[inner] - theirs[inner]).abs().mean() < 0.005


def test_all_angles_of_a_set_are_cropped_alike(photos: Tensor) -> None:
    x, positions = photos[:4].float(), torch.tensor([0, 1, 0, 1])
    common = rotate(x, positions, (0.0, 45.0))
    degrees = torch.tensor([0.0, 45.0])[positions]
    assert torch.equal(common, rotate_and_crop(x, degrees, valid_share(45)))
    assert not torch.allclose(common[0], x[0])  # 0° is zoomed and sampled like 45°
    exact = rotate(x, positions, (180.0, 270.0))
    assert torch.equal(exact[0], torch.rot90(x[0], 2, (1, 2)))
    assert torch.equal(exact[1], torch.rot90(x[1], 3, (1, 2)))
