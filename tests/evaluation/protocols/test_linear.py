"""The linear probe against torch, scikit-learn and the published constants, on real features."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression

import effssl
from effssl.data import Data
from effssl.evaluation.crops import crop_loader
from effssl.evaluation.protocols.linear import (
    SETTINGS,
    LinearOptions,
    LinearProbe,
    augmented_batches,
    cached_batches,
    linear_accuracy,
    train_linear,
)
from effssl.features.extract import Features
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.randomness import generator


def test_linear_step_is_sgd_with_momentum(features: tuple[Features, Features]) -> None:
    """Two epochs by our closed-form gradient equal torch's SGD and autograd on the same batches."""
    train, _ = features
    probe = dataclasses.replace(SETTINGS["cached"], lrs=(0.1, 0.5), epochs=2)
    g = generator(3, "linear")
    batches = cached_batches(train, 512, g)
    weight, bias, _ = train_linear(batches, train.h.shape[1], 10, probe, g)
    g = generator(3, "linear")
    bound = train.h.shape[1] ** -0.5
    w = (torch.rand(1, train.h.shape[1], 10, generator=g) * 2 - 1).mul(bound)[0]
    b = (torch.rand(1, 1, 10, generator=g) * 2 - 1).mul(bound)[0, 0]
    layer = torch.nn.Linear(train.h.shape[1], 10)
    layer.weight.data, layer.bias.data = w.T.clone(), b.clone()
    optimizer = torch.optim.SGD(layer.parameters(), 0.5, momentum=0.9)
    for epoch in range(2):
        lr = 0.5 * 0.2 ** sum(epoch >= share * 2 for share in (0.6, 0.75, 0.9))
        optimizer.param_groups[0]["lr"] = lr
        for rows in torch.randperm(len(train.h), generator=g).split(512):
            optimizer.zero_grad()
            F.cross_entropy(layer(train.h[rows]), train.labels[rows]).backward()
            optimizer.step()
    assert torch.allclose(weight[1].T, layer.weight, atol=1e-4)
    assert torch.allclose(bias[1, 0], layer.bias, atol=1e-4)


def test_linear_probe_is_near_logistic_regression(features: tuple[Features, Features]) -> None:
    train, test = features
    g = generator(0, "linear")
    batches = cached_batches(train, 512, g)
    probe = dataclasses.replace(SETTINGS["cached"], lrs=(0.5,))
    weight, bias, _ = train_linear(batches, train.h.shape[1], 10, probe, g)
    mine = float(linear_accuracy(weight, bias, test))
    theirs = LogisticRegression(C=1e3, max_iter=3000).fit(train.h.numpy(), train.labels.numpy())
    assert mine == pytest.approx(100 * theirs.score(test.h.numpy(), test.labels.numpy()), abs=5)


def test_the_probe_never_chooses_on_test(encoder: LoadedEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """With shuffled test labels the learning rate that is chosen stays the same."""
    data = effssl.open_data("digits")
    score = effssl.evaluate("linear", encoder, data, epochs=5)
    assert data.test is not None
    shuffled = dataclasses.replace(data.test, labels=data.test.labels.roll(17))
    other = effssl.evaluate("linear", encoder, dataclasses.replace(data, test=shuffled), epochs=5)
    assert other.constants["lr"] == score.constants["lr"]
    assert other.accuracy < score.accuracy - 20


@pytest.mark.parametrize("name", list(SETTINGS))
def test_schedules_of_the_published_probes(name: str) -> None:
    rates = [SETTINGS[name].rate(epoch / 100) for epoch in (0, 59, 60, 74, 75, 80, 90, 99)]
    expected = {
        "cached": [1, 1, 0.2, 0.2, 0.04, 0.04, 0.008, 0.008],
        "imagenet100-crops": [1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01],
    }.get(name, [(1 + np.cos(np.pi * epoch / 100)) / 2 for epoch in (0, 59, 60, 74, 75, 80, 90, 99)])
    assert rates == pytest.approx(expected)


def test_constants_of_the_published_probes() -> None:
    """SPEC §4.2, row by row: rates, batch, schedule, weight decay, initialization, augmentation."""
    steps, tenths = ((0.6, 0.75, 0.9), 0.2), ((0.6, 0.8), 0.1)
    table = {
        "cached": ((0.1, 0.5, 1.0, 1.5, 2.0), 512, steps, 0.0, 0.0, False),
        "cifar-crops": ((30.0,), 512, None, 0.0, 0.0, True),
        "imagenet100-crops": ((1.0,), 256, tenths, 0.0, 0.0, True),
        "imagenet-crops": ((0.3,), 256, None, 1e-6, 0.01, True),
    }
    for name, s in SETTINGS.items():
        schedule = (s.milestones, s.factor) if s.milestones else None
        assert (s.lrs, s.batch, schedule, s.weight_decay, s.init_std, s.augmented) == table[name]
    assert set(SETTINGS) == set(table)
    assert LinearOptions().epochs == 100


def test_cosine_in_place_of_steps(encoder: LoadedEncoder, digits: Data) -> None:
    usual = effssl.evaluate("linear", encoder, digits, epochs=4, lr=[0.5])
    cosine = effssl.evaluate("linear", encoder, digits, epochs=4, lr=[0.5], schedule="cosine")
    assert usual.constants["lr_decay"] == "x0.2 at 2, 3, 4"
    assert cosine.constants["lr_decay"] == "cosine to 0"
    assert cosine.value != usual.value


def test_weight_decay_is_torchs(features: tuple[Features, Features]) -> None:
    train, _ = features
    probe = LinearProbe((0.3,), 512, epochs=1, weight_decay=0.1)
    g = generator(0, "linear")
    weight, bias, _ = train_linear(cached_batches(train, 512, g), train.h.shape[1], 10, probe, g)
    g = generator(0, "linear")
    layer = torch.nn.Linear(train.h.shape[1], 10)
    bound = train.h.shape[1] ** -0.5
    layer.weight.data = (torch.rand(1, train.h.shape[1], 10, generator=g) * 2 - 1).mul(bound)[0].T.clone()
    layer.bias.data = (torch.rand(1, 1, 10, generator=g) * 2 - 1).mul(bound)[0, 0]
    optimizer = torch.optim.SGD(layer.parameters(), 0.3, momentum=0.9, weight_decay=0.1)
    for rows in torch.randperm(len(train.h), generator=g).split(512):
        optimizer.zero_grad()
        F.cross_entropy(layer(train.h[rows]), train.labels[rows]).backward()
        optimizer.step()
    assert torch.allclose(weight[0].T, layer.weight, atol=1e-4)
    assert torch.allclose(bias[0, 0], layer.bias, atol=1e-4)


def test_augmented_features_are_those_of_random_crops(encoder: LoadedEncoder, digits: Data) -> None:
    batches = list(augmented_batches(encoder, digits.train, 500, seed=0)(0))
    assert sum(len(y) for _, y in batches) == len(digits.train)  # the partial batch too
    views = next(crop_loader(encoder, digits.train, 500, 0).epoch(0))
    with torch.inference_mode():
        expected = encoder.encoder(views.pixels["large"][0])
    assert torch.allclose(batches[0][0], expected, atol=1e-5)
    assert torch.equal(batches[0][1], digits.train.labels[views.index])
    later = next(augmented_batches(encoder, digits.train, 500, seed=0)(1))
    assert not torch.equal(later[0], batches[0][0])


def test_augmented_probe_learns_and_chooses_its_rate_on_validation(encoder: LoadedEncoder, digits: Data) -> None:
    score = effssl.evaluate("linear", encoder, digits, setting="imagenet-crops", epochs=8, lr=[1e-6, 1.0])
    assert score.constants["lr"] == 1.0
    assert "validation (143" in score.constants["lr_chosen_on"]
    assert score.accuracy > 18  # a random encoder; chance is 10
    assert score.also["top5"] >= score.also["best_epoch_accuracy"] >= score.accuracy
