"""Fine-tuning a copy of the encoder, against a plain loop."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

import effssl
from effssl.data import Data
from effssl.evaluation.crops import crop_loader
from effssl.evaluation.fine_tuning import FineTuning, fine_tune
from effssl.network.encoders import build_encoder
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.randomness import seeded


def test_fine_tuning_equals_a_plain_loop(encoder: LoadedEncoder, digits: Data) -> None:
    """Five epochs, of which two have a decayed learning rate; one optimizer per part instead of one with two groups."""
    got = fine_tune(encoder, digits.train, digits.test, FineTuning(5, 256, 0.02, 0.5, seed=1))
    f = copy.deepcopy(encoder.encoder).requires_grad_(True).train()
    with seeded(1, "fine-tuning"):
        head = torch.nn.Linear(encoder.dim, 10)
    optimizers = [torch.optim.SGD(f.parameters(), 0.02, 0.9), torch.optim.SGD(head.parameters(), 0.5, 0.9)]
    loader = crop_loader(encoder, digits.train, 256, 1)
    assert loader.steps == 6  # 1437 images: the partial batch is kept
    for epoch, decay in enumerate((1, 1, 1, 0.2, 0.04)):
        for optimizer, lr in zip(optimizers, (0.02, 0.5), strict=True):
            optimizer.param_groups[0]["lr"] = lr * decay
        for views in loader.epoch(epoch):
            loss = F.cross_entropy(head(f(views.pixels["large"][0])), digits.train.labels[views.index])
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
    f.eval()
    with torch.no_grad():
        logits = head(f(encoder.preprocess(digits.test.pixels)))
    right = logits.argsort(1, descending=True) == digits.test.labels[:, None]
    assert got.top1 == pytest.approx(100 * float(right[:, 0].float().mean()), abs=0.3)
    assert got.also["top5"] == pytest.approx(100 * float(right[:, :5].any(1).float().mean()), abs=0.3)
    assert got.top1 > 20  # chance is 10


def test_learning_rates_decay_at_12_and_16_of_20_epochs(
    encoder: LoadedEncoder, digits: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[list[float]] = []

    class RecordingSGD(torch.optim.SGD):
        def step(self, closure: None = None) -> None:
            used.append([group["lr"] for group in self.param_groups])
            super().step(closure)

    monkeypatch.setattr(torch.optim, "SGD", RecordingSGD)
    some = digits.train.select(torch.arange(32))
    fine_tune(encoder, some, digits.test, FineTuning(20, 32, lr=0.01, head_lr=0.2, seed=0))
    decays = [1.0] * 12 + [0.2] * 4 + [0.04] * 4
    assert [pytest.approx([0.01 * decay, 0.2 * decay]) for decay in decays] == used


def test_dropout_follows_the_seed(digits: Data) -> None:
    about = {"image_size": 32, "mean": [0.5] * 3, "std": [0.25] * 3}
    with seeded(0, "test"):
        small = build_encoder("small", 32)
    small.backbone.avgpool = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Dropout(0.5))
    dropping = LoadedEncoder(small, about).requires_grad_(False).eval()
    some = digits.train.select(torch.arange(64))
    state, values = torch.get_rng_state(), []
    for noise in (1, 2):
        torch.manual_seed(noise)
        values.append(fine_tune(dropping, some, digits.test, FineTuning(2, 32, 0.02, 0.5, seed=1)).top1)
    assert values[0] == values[1]
    torch.manual_seed(2)
    fine_tune(dropping, some, digits.test, FineTuning(1, 32, 0.02, 0.5, seed=1))
    assert torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(2).get_state())  # no trace
    torch.set_rng_state(state)


def test_a_diverging_fine_tuning_is_a_failed_run(encoder: LoadedEncoder, digits: Data) -> None:
    with pytest.raises(effssl.RunFailed, match="not finite in epoch"):
        effssl.evaluate("finetune", encoder, digits, lr=1e30, epochs=2)
