"""`--compile` changes how a step is computed, not what."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from effssl.data import ArrayImages, Data
from effssl.recipes import resolve
from effssl.training import loop


@pytest.mark.long
def test_a_compiled_step_is_the_same_step(tiny_photos: Tensor) -> None:
    """A minute of compiling; two steps of compiled encoder and views against the plain ones."""
    found = []
    for compiled in (False, True):
        flags = {"data": "photos", "objective": "byol+rotation", "image_size": 32, "batch_size": 32, "encoder": "small"}
        plan = resolve(flags | {"compile": compiled})
        trainer = loop.Trainer(plan, Data("photos", ArrayImages(tiny_photos)), torch.device("cpu"))
        batches = trainer.loader.epoch(0)
        views = [next(batches) for _ in range(2)]
        losses = [float(trainer.counted_step(views[0])[0]), float(trainer.step(views[1])[0])]
        found.append((views, losses, trainer.objective.state_dict(), trainer.position.flops))
    (plain, losses, state, flops), (made, compiled_losses, compiled_state, compiled_flops) = found
    assert compiled_losses == pytest.approx(losses, abs=1e-4)
    assert compiled_flops == flops
    assert compiled_state.keys() == state.keys()
    for a, b in zip(plain[0].large, made[0].large, strict=True):
        assert torch.allclose(a, b, atol=1e-4)
