"""`--compile` changes how a step is computed, not what."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from effssl.data import ArrayImages, Data
from effssl.recipes import resolve
from effssl.training.trainer import Trainer


@pytest.mark.long
def test_a_compiled_step_is_the_same_step(tiny_photos: Tensor) -> None:
    """A minute of compiling; two steps of compiled encoder and views against the plain ones."""
    found = []
    for compiled in (False, True):
        flags = {"data": "photos", "objective": "byol+rotation", "image_size": 32, "batch_size": 32, "encoder": "small"}
        plan = resolve(flags | {"compile": compiled})
        trainer = Trainer(plan, Data("photos", ArrayImages(tiny_photos)), torch.device("cpu"))
        batches = trainer.loader.epoch(0)
        views = [next(batches) for _ in range(2)]
        losses = []
        for batch in views:
            trainer.train_step(batch)
            losses.append(trainer.means.mean("loss"))
        found.append((views, losses, trainer.objective.state_dict(), trainer.position.flops))
    (plain, losses, state, flops), (compiled_views, compiled_losses, compiled_state, compiled_flops) = found
    assert compiled_losses == pytest.approx(losses, abs=1e-4)
    assert compiled_flops == flops
    assert compiled_state.keys() == state.keys()
    for name, x in plain[0].pixels.items():
        assert torch.allclose(x, compiled_views[0].pixels[name], atol=1e-4)
