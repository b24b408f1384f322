"""timm's transformers as stages: tokens, blocks, a pooled feature."""

from __future__ import annotations

import pytest
import torch

import effssl
from effssl.network.encoders import build_encoder
from effssl.recipes import resolve
from effssl.training.optimizers import set_learning_rate
from effssl.training.trainer import Trainer

TINY = "timm:vit_tiny_patch4"


@pytest.mark.parametrize(("name", "size"), [(TINY, 32), ("timm:vit_little_patch16_reg4_gap_256", 64)])
def test_stages_are_the_network(name: str, size: int) -> None:
    """The class token in one, the mean of patch tokens in the other; each weight is in one stage."""
    encoder = build_encoder(name, size).eval()
    stages = encoder.stages()
    assert len(stages) == 1 + len(encoder.backbone.blocks)
    for side in (size, size // 2):  # position embeddings are interpolated
        x = torch.randn(2, 3, side, side)
        y = x
        for stage in stages:
            y = stage(y)
        torch.testing.assert_close(y, encoder(x))
    ids = [id(p) for stage in stages for p in stage.parameters()]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(p) for p in encoder.parameters()}


def test_patches_of_another_side() -> None:
    assert build_encoder(TINY, 32).backbone.patch_embed.grid_size == (8, 8)
    assert build_encoder("timm:vit_tiny_patch16_224", 32).backbone.patch_embed.grid_size == (2, 2)


def test_tasks_multi_crop_frozen_blocks_and_decayed_rates() -> None:
    """rotation shares some blocks, small views have fewer tokens, the first blocks stay."""
    flags = {"rotation": {"shared": 9}, "views": {"small": {"count": 2, "size": 16}}, "freeze": 2, "lr": 1e-3}
    adamw = {"name": "adamw", "layer_decay": 0.9}
    given = {"data": "digits", "objective": "swav+rotation", "recipe": "cpu-swav", "encoder": TINY, "batch_size": 8}
    plan = resolve(
        given | flags | {"optimizer": adamw, "image_size": 32, "epochs": 1, "schedule": {"warmup_epochs": 0}}
    )
    trainer = Trainer(plan, effssl.open_data("digits"), torch.device("cpu"))
    vit = trainer.objective.network.encoder.backbone
    before = {key: value.clone() for key, value in vit.state_dict().items()}
    trainer.step(next(iter(trainer.loader.epoch(0))))
    changed = {key for key, value in vit.state_dict().items() if not torch.equal(value, before[key])}
    assert not any(key.startswith(("patch_embed", "pos_embed", "cls_token", "blocks.0.")) for key in changed)
    assert {"blocks.1.mlp.fc1.weight", "blocks.11.mlp.fc1.weight", "norm.weight"} <= changed
    set_learning_rate(trainer.optimizer, 1.0)
    rates = {id(p): group["lr"] for group in trainer.optimizer.param_groups for p in group["params"]}
    assert rates[id(vit.blocks[11].mlp.fc1.weight)] == pytest.approx(0.9)
    assert rates[id(vit.blocks[1].mlp.fc1.weight)] == pytest.approx(0.9**11)
