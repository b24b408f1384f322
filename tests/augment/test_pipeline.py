from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from effssl.augment import changes, pipeline
from effssl.augment import pipeline as augment
from effssl.augment.crop import boxes
from effssl.augment.options import Augment
from effssl.augment.pipeline import JITTER_GROUP
from effssl.runtime.randomness import generator

PLAIN = Augment(scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0, jitter=0, gray=0, mean=(0, 0, 0), std=(1, 1, 1))


def apply(config: Augment, images: Tensor, parameters: augment.ViewParameters, size: int) -> Tensor:
    sizes = torch.tensor(images.shape[-2:]).expand(len(images), 2)
    box = boxes(sizes, parameters.box[:, 0], config.ratio)
    return augment.photometric(config, augment.crop_and_flip(images, box, parameters.flip, size), parameters)


def views(config: Augment, images: Tensor, size: int = 32, seed: int = 0) -> Tensor:
    return apply(config, images, augment.draw_parameters(config, len(images), 1, [generator(seed, "t")]), size)


def test_without_any_change_the_view_is_the_image(photos: Tensor) -> None:
    assert torch.allclose(views(PLAIN, photos, 96), photos / 255, atol=1e-5)


def test_same_generator_same_view_other_generator_other_view(photos: Tensor) -> None:
    config = Augment()
    assert torch.equal(views(config, photos), views(config, photos))
    assert not torch.equal(views(config, photos), views(config, photos, seed=1))


def test_probabilities_come_out_right() -> None:
    config = Augment(blur=(1.0, 0.1), solarize=(0.0, 0.2))
    both = augment.draw_parameters(config, 20_000, 2, [generator(0, "p")])
    first, second = (
        augment.ViewParameters(**{name: value[k::2] for name, value in vars(both).items()}) for k in (0, 1)
    )  # the views of an image stand together
    assert not torch.equal(first.box, second.box)
    assert first.flip.float().mean().sub(0.5).abs() < 0.02
    assert first.gray.float().mean().sub(0.2).abs() < 0.02
    neutral = (first.factors == torch.tensor([1.0, 1, 1, 0])).all(1)
    assert neutral.float().mean().sub(0.2).abs() < 0.02
    assert (first.changes[:, 0] > 0).all()
    assert (second.changes[:, 0] > 0).float().mean().sub(0.1).abs() < 0.02
    assert not first.changes[:, 1].any()
    assert (second.changes[:, 1] > 0).float().mean().sub(0.2).abs() < 0.02
    assert first.factors[:, 3].abs().max() <= 0.1
    assert first.factors[:, :3].min() >= 0.6


def test_order_of_jitter_is_a_permutation_per_group() -> None:
    order = augment.draw_parameters(Augment(), 40 * JITTER_GROUP, 1, [generator(0, "o")]).order
    groups = order.view(40, JITTER_GROUP, 4)
    assert (groups == groups[:, :1]).all()
    assert (groups.sort(2).values == torch.arange(4)).all()
    assert len({tuple(row) for row in groups[:, 0].tolist()}) > 10


def test_cropped_images_only_miss_the_flip(photos: Tensor) -> None:
    config = Augment(jitter=0, gray=0, mean=(0, 0, 0), std=(1, 1, 1))
    parameters = augment.draw_parameters(config, 64, 1, [generator(0, "c")])
    out = augment.photometric(config, augment.flip_crops(photos[:, None], parameters.flip), parameters)
    expected = torch.where(parameters.flip.view(-1, 1, 1, 1), photos.flip(-1), photos) / 255
    assert torch.allclose(out, expected)


def test_rows_can_be_kept_by_rank(photos: Tensor) -> None:
    config = Augment(blur=(0.5,), solarize=(0.3,))
    images = photos.repeat(2, 1, 1, 1)

    def some(rows: slice) -> Tensor:
        return apply(
            config, images[rows], augment.draw_parameters(config, len(images), 1, [generator(0, "r")], rows), 32
        )

    parts = [some(rows) for rows in (slice(0, 48), slice(48, 128))]
    assert torch.allclose(some(slice(None)), torch.cat(parts), atol=1e-5)


def test_a_few_at_a_time_are_recolored_as_all_at_once(photos: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = views(Augment(), photos)
    monkeypatch.setattr(pipeline, "IN_CACHE", 7 * 3 * 32 * 32)
    assert torch.allclose(views(Augment(), photos), whole, atol=1e-5)


@pytest.mark.parametrize("size", [32, 96])
def test_views_of_an_image_are_made_as_if_alone(photos: Tensor, size: int) -> None:
    config = Augment(blur=(0.7, 0.3, 0.1), solarize=(0.1, 0.5, 0.3), gray=0.4)
    parameters = augment.draw_parameters(config, len(photos), 3, [generator(0, "m")])
    box = boxes(torch.tensor([[96, 96]]).expand(len(parameters.flip), 2), parameters.box[:, 0], config.ratio)
    together = augment.photometric(config, augment.crop_and_flip(photos, box, parameters.flip, size), parameters)
    for k, mine in enumerate(together.unflatten(2, (3, size)).unbind(2)):
        alone = augment.ViewParameters(**{name: value[k::3] for name, value in vars(parameters).items()})
        assert all(chosen.any() for chosen in (*alone.changes.unbind(1), alone.gray))
        assert torch.allclose(mine, apply(config, photos, alone, size), atol=1e-4)


def test_gray_needs_no_jitter(photos: Tensor) -> None:
    red, green, blue = views(Augment(jitter=0, gray=1, mean=(0, 0, 0), std=(1, 1, 1)), photos).unbind(1)
    assert torch.allclose(red, green)
    assert torch.allclose(green, blue)


def test_a_view_does_not_depend_on_how_many_follow() -> None:
    config = Augment(blur=(0.5, 0.1))
    alone, three = (augment.draw_parameters(config, 200, count, [generator(0, "v")]) for count in (1, 3))
    for name, value in vars(alone).items():
        assert torch.equal(value, getattr(three, name)[::3]), name


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
def test_whole_images_at_their_own_size_are_not_resampled(photos: Tensor, name: str) -> None:
    """To the bit; and so are boxes that are not whole, or views of another side, up to what resampling does."""
    boxes_of_all = torch.tensor([[0, 0, 96, 96]]).expand(64, 4)
    flips = torch.arange(64) % 2 == 0
    expected = torch.where(flips.view(-1, 1, 1, 1), photos.flip(-1), photos).float() / 255
    assert (augment.crop_and_flip(photos, boxes_of_all, flips, 96, name) - expected).abs().max() < 1e-7
    shifted = boxes_of_all + torch.tensor([0, 3, 0, -3])
    assert not torch.allclose(augment.crop_and_flip(photos, shifted, flips, 96, name), expected, atol=0.05)
    assert augment.crop_and_flip(photos, boxes_of_all, flips, 48, name).shape == (64, 3, 48, 48)


def test_a_change_in_a_file_of_its_own_is_found_and_applied(
    photos: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file; its settings would be fields of `Augment`."""
    (tmp_path / "invert.py").write_text(
        "from effssl.augment.change import Change\n"
        "CHANGE = Change(lambda config: (0.0, 1.0), lambda config, u: u + 1, lambda config, x, amount: 1 - x)\n"
    )
    monkeypatch.setattr(changes, "__path__", [*changes.__path__, str(tmp_path)])
    changes.all_changes.cache_clear()
    try:
        parameters = augment.draw_parameters(PLAIN, len(photos), 2, [generator(0, "t")])
        assert parameters.changes.shape == (2 * len(photos), 3)
        x = (photos / 255).repeat_interleave(2, 0).unflatten(0, (-1, 2)).transpose(1, 2).flatten(2, 3)
        first, second = augment.photometric(PLAIN, x, parameters).unflatten(2, (2, -1)).unbind(2)
    finally:
        changes.all_changes.cache_clear()
    assert torch.allclose(first, photos / 255, atol=1e-6)
    assert torch.allclose(second, 1 - photos / 255, atol=1e-6)
