"""Every recipe builds a trainer and takes a step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from effssl import recipes
from effssl.data import ArrayImages, Data
from effssl.objectives.options import TERMS
from effssl.training.loop import Trainer

TWENTY_CROPS = ("images-tcr",)  # seconds; cifar10-tcr has the same views


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n in TWENTY_CROPS)) for n in recipes.names()]
)
def test_every_recipe_takes_a_step(name: str, photos: Tensor) -> None:
    """As it stands, but for a teacher and the size of images, batch, queue and small crops."""
    term = name.split("-")[1]
    objective = term if TERMS[term].options.pretext else f"{term}+rotation"
    batch = 16 if term == "moco" else 4  # its keys run in eight groups
    size = 64 if term == "jigsaw" else 32
    flags = {"data": "x", "objective": objective, "recipe": name, "batch_size": batch, "image_size": size}
    flags |= {"moco": {"queue": 32}, "distill": {"teacher": "pixels-8"}}
    plan = recipes.resolve(flags | {"views": {"small": {"size": 16.0}}})
    data = Data("photos", ArrayImages(photos[:16], torch.arange(16) % 4, list("abcd")))
    trainer = Trainer(plan, data, torch.device("cpu"))
    loss, _ = trainer.step(next(trainer.loader.epoch(0)))
    assert torch.isfinite(loss)
