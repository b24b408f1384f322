"""A GPU is never waited for: a step that looked at a value on its device could not run on torch's meta device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from effssl.data import ArrayImages, Data
from effssl.recipes import resolve
from effssl.training.trainer import Trainer

META = torch.device("meta")
OBJECTIVES: list[tuple[str, dict]] = [
    ("simclr+rotation", {}),
    ("simclr", {"simclr": {"known_labels": 0.5}}),
    ("byol+rotation", {"rotation": {"noise": 0.3}}),
    ("byol+rotation", {"views": {"rotated": {"angles": [0, 45, 90]}}}),
    ("byol+rotation", {"rotation": {"shared": 3}}),
    ("byol+rotation_cosine", {}),
    ("byol+rotation_supcon", {}),
    ("byol+jigsaw", {"image_size": 64}),
    ("simsiam", {"views": {"large": {"rotated": True}}, "augment": {"blur": [0.5], "solarize": [0.2]}}),
    ("swav+rotation", {"swav": {"queue": 50, "queue_from": 0.0}, "views": {"small": {"count": 2, "size": 16}}}),
    ("moco+rotation", {"moco": {"queue": 100}}),
    ("nnclr+rotation", {"nnclr": {"queue": 100}}),
    ("dino", {"views": {"small": {"count": 2, "size": 16}}}),
    ("barlow+rotation", {"optimizer": {"clip_norm": 1.0}}),
    ("supcon", {"supcon": {"label_noise": 0.2}}),
    ("supervised+rotation", {}),
    ("rotation", {"optimizer": {"name": "lars"}}),
]


@pytest.mark.parametrize(("objective", "flags"), OBJECTIVES, ids=lambda x: x if isinstance(x, str) else "")
def test_a_step_never_waits_for_its_device(objective: str, flags: dict, tiny_photos: Tensor) -> None:
    labels = torch.arange(len(tiny_photos)) % 4
    data = Data("photos", ArrayImages(tiny_photos, labels, list("abcd")))
    request = {"data": "photos", "objective": objective, "image_size": 32, "batch_size": 16, "encoder": "small"}
    plan = resolve(request | flags | {"health": {"snr": True}})
    trainer = Trainer(plan, data, META)
    batches = trainer.loader.epoch(0)
    for _ in range(2):
        views = next(batches)
        assert all(x.device == META for x in views.pixels.values())
        loss, metrics = trainer.step(views)
        assert {value.device for value in (loss, *metrics.values())} == {META}
    with pytest.raises((RuntimeError, NotImplementedError)):
        loss.item()  # what this test relies on
