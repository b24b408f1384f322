"""From a configuration to modules."""

from __future__ import annotations

import torch
from torch import Tensor

from effssl.recipes import resolve
from effssl.training.build import build_network


def test_initial_weights_depend_on_the_seed_alone() -> None:
    def weights(**flags) -> Tensor:
        plan = resolve({"data": "digits", "objective": "byol", "image_size": 32} | flags)
        return build_network(plan.config).encoder.backbone.conv1.weight

    torch.manual_seed(1)
    first = weights()
    torch.manual_seed(2)
    assert torch.equal(first, weights(objective="byol+rotation", lr=0.1))
    assert not torch.equal(first, weights(seed=1))
