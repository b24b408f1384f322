"""Words: the loss by numpy, targets of the clean image, and that it learns."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from effssl.augment.pixel_format import PixelFormat
from effssl.data import ArrayImages, Data
from effssl.network.patches import PatchResponses
from effssl.objectives.words import Words
from effssl.runtime.errors import RequestError
from tests.objectives.making import BATCH, first_views, losses_of_epochs, make, trainer_of

FLAGS = {"recipe": "cpu-simclr", "words": {"filters": 8, "stride": 4, "dim": 12}}


def words_of(data: Data, objective: str = "simclr+words"):
    made = make(objective, data, **FLAGS)
    return made, made.terms["words"]


def test_the_loss_is_one_minus_the_mean_cosine(data: Data) -> None:
    objective, words = words_of(data)
    views = first_views(data, "simclr+words", **FLAGS)
    outcome = objective.outcomes(views)["words"]
    h = objective.step(views).online("h").detach()  # V×B×D
    p = words.head(h).detach().double().numpy()
    t = words.whitening(words.patches(views.clean)).double().numpy()
    cosines = [
        float(p[v, i] @ t[i] / np.linalg.norm(p[v, i]) / np.linalg.norm(t[i]))
        for v in range(len(p))
        for i in range(BATCH)
    ]
    assert len(p) == 2
    assert float(outcome.loss.detach()) == pytest.approx(1 - np.mean(cosines), abs=1e-5)


def test_an_image_is_recognized_among_those_of_the_batch(data: Data) -> None:
    objective, words = words_of(data)
    views = first_views(data, "simclr+words", **FLAGS)
    p = torch.nn.functional.normalize(words.head(objective.step(views).online("h")), dim=2)
    nearest = (p @ words.target(views.clean).T).argmax(2)
    outcome = objective.outcomes(views)["words"]
    assert float(outcome.accuracy) == pytest.approx(float((nearest == torch.arange(BATCH)).float().mean()))
    assert outcome.chance == 1 / BATCH


def test_targets_are_of_the_clean_image_and_do_not_move(data: Data) -> None:
    trainer = trainer_of("simclr+words", data, epochs=2, **FLAGS)
    words = trainer.objective.terms["words"]
    assert isinstance(words, Words)
    assert isinstance(words.patches, PatchResponses)
    views = next(iter(trainer.loader.epoch(0)))
    before = words.target(views.clean)
    changed = dataclasses.replace(views, pixels={name: x + 1 for name, x in views.pixels.items()})
    trainer.step(changed)
    assert torch.equal(words.target(views.clean), before)
    assert torch.allclose(before.norm(dim=1), torch.ones(BATCH))


def test_filters_follow_the_seed_and_the_images(data: Data) -> None:
    _, words = words_of(data)
    _, again = words_of(data)
    assert torch.equal(words.patches.filters, again.patches.filters)
    other = make("simclr+words", data, seed=1, **FLAGS).terms["words"]
    assert not torch.equal(words.patches.filters, other.patches.filters)


def test_it_learns_alone_and_beside_a_base(data: Data) -> None:
    for objective in ("words", "simclr+words"):
        losses = list(losses_of_epochs(trainer_of(objective, data, epochs=4, **FLAGS), 4, "loss/words"))
        assert losses[-1] < losses[0] - 0.02


def test_it_adds_nothing_to_the_views_and_weights_of_the_base(data: Data) -> None:
    alone, with_words = make("simclr", data, **FLAGS), make("simclr+words", data, **FLAGS)
    weights = with_words.network.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in alone.network.state_dict().items())
    views = [first_views(data, name, **FLAGS).pixels["large"] for name in ("simclr", "simclr+words")]
    assert torch.equal(*views)


@pytest.mark.parametrize("channels", [4, 12])
def test_images_of_other_channels(channels: int) -> None:
    images = torch.randint(256, (48, channels, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = Data("bands", ArrayImages(images, pixel_format=PixelFormat(channels)))
    augment = {"pixels": {"channels": channels}, "mean": (0.5,) * channels, "std": (0.3,) * channels}
    trainer = trainer_of("simclr+words", data, augment=augment, **FLAGS)
    assert trainer.objective.terms["words"].patches.filters.shape[1] == channels
    assert all(0 < loss < 2 for loss in losses_of_epochs(trainer, 1, "loss/words"))


def test_without_images_it_is_refused() -> None:
    with pytest.raises(RequestError, match="computes its filters from the training images"):
        make("simclr+words", **FLAGS)
