"""kNN and the linear probe against scikit-learn and by hand, on real features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

import effssl
from effssl.data import Data
from effssl.evaluation import Features
from effssl.evaluation.linear import (
    SETTINGS,
    Setting,
    augmented_batches,
    cached_batches,
    crops_of,
    linear_accuracy,
    train_linear,
)
from effssl.evaluation.options import Linear
from effssl.features.knn import knn_accuracy, knn_votes, largest, nearest
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.randomness import generator


@pytest.mark.parametrize("k", [1, 20, 200])
def test_knn_equals_scikit_learn(features: tuple[Features, Features], k: int) -> None:
    train, test = features

    def weight(cosine_distance: np.ndarray) -> np.ndarray:
        return np.exp((1 - cosine_distance) / 0.1)

    theirs = KNeighborsClassifier(k, metric="cosine", algorithm="brute", weights=weight)
    theirs.fit(train.h.double().numpy(), train.labels.numpy())
    expected = 100 * theirs.score(test.h.double().numpy(), test.labels.numpy())
    exact = [Features(f.h.double(), f.labels, f.rows) for f in features]
    assert knn_accuracy(*exact, k=k) == pytest.approx(expected, abs=0.01)
    assert knn_accuracy(train, test, k=k) == pytest.approx(expected, abs=0.6)  # float32 ties


def test_knn_in_chunks_is_the_same(features: tuple[Features, Features], monkeypatch: pytest.MonkeyPatch) -> None:
    from effssl.evaluation import knn

    train, test = features
    whole = knn_votes(test.h, train.h, train.labels, 10, 50, 0.1)
    monkeypatch.setattr(knn, "CHUNK", 7 * len(train.h))
    assert torch.allclose(knn_votes(test.h, train.h, train.labels, 10, 50, 0.1), whole, rtol=1e-4)


@pytest.mark.parametrize(("columns", "k"), [(1, 1), (7, 3), (200, 200), (1003, 10), (5000, 1), (4099, 200)])
def test_the_search_by_groups_finds_what_topk_finds(columns: int, k: int) -> None:
    x = torch.randn(20, columns, generator=generator(0, "largest", columns))
    x[:5] = (x[:5] * 2).round() / 2  # many equal values, as duplicates in a bank give
    values, index = largest(x, k)
    assert torch.equal(values, x.topk(k).values)
    assert torch.equal(x.gather(1, index), values)
    assert all(len(set(row)) == k for row in index.tolist())


def test_linear_step_is_sgd_with_momentum(features: tuple[Features, Features]) -> None:
    """Two epochs by our closed-form gradient equal torch's SGD and autograd on the same batches."""
    train, _ = features
    lrs = (0.1, 0.5)
    g = generator(3, "linear")
    batches = cached_batches(train, 512, g)
    weight, bias, _ = train_linear(batches, train.h.shape[1], 10, SETTINGS["cached"], lrs, 2, g)
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
            torch.nn.functional.cross_entropy(layer(train.h[rows]), train.labels[rows]).backward()
            optimizer.step()
    assert torch.allclose(weight[1].T, layer.weight, atol=1e-4)
    assert torch.allclose(bias[1, 0], layer.bias, atol=1e-4)


def test_linear_probe_is_near_logistic_regression(features: tuple[Features, Features]) -> None:
    train, test = features
    g = generator(0, "linear")
    batches = cached_batches(train, 512, g)
    weight, bias, _ = train_linear(batches, train.h.shape[1], 10, SETTINGS["cached"], (0.5,), 100, g)
    mine = float(linear_accuracy(weight, bias, test))
    theirs = LogisticRegression(C=1e3, max_iter=3000).fit(train.h.numpy(), train.labels.numpy())
    assert mine == pytest.approx(100 * theirs.score(test.h.numpy(), test.labels.numpy()), abs=5)


def test_evaluation_leaves_the_encoder_as_it_was_and_asserts_that_it_is_frozen(encoder: LoadedEncoder) -> None:
    data = effssl.open_data("digits")
    before = encoder.fingerprint()
    effssl.evaluate("knn", encoder, data)
    effssl.evaluate("linear", encoder, data, epochs=2)
    assert encoder.fingerprint() == before
    encoder.train()
    with pytest.raises(AssertionError, match="eval mode"):
        effssl.evaluate("knn", encoder, data)
    encoder.eval().requires_grad_(True)
    with pytest.raises(AssertionError, match="frozen"):
        effssl.evaluate("knn", encoder, data)
    encoder.requires_grad_(False)


def test_the_probe_never_chooses_on_test(encoder: LoadedEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """With shuffled test labels the learning rate that is chosen stays the same."""
    import dataclasses

    data = effssl.open_data("digits")
    score = effssl.evaluate("linear", encoder, data, epochs=5)
    assert data.test is not None
    shuffled = dataclasses.replace(data.test, labels=data.test.labels.roll(17))
    other = effssl.evaluate("linear", encoder, dataclasses.replace(data, test=shuffled), epochs=5)
    assert other.constants["lr"] == score.constants["lr"]
    assert other.accuracy < score.accuracy - 20


def test_no_test_image_is_dropped(features: tuple[Features, Features]) -> None:
    assert len(features[0].h) == 1437
    assert len(features[1].h) == 360


def test_unknown_evaluation(encoder: LoadedEncoder) -> None:
    with pytest.raises(effssl.RequestError, match="did you mean linear"):
        effssl.evaluate("liner", encoder, effssl.open_data("digits"))


@pytest.mark.parametrize("name", ["cached", "simsiam", "simclr", "swav"])
def test_schedules_of_the_published_probes(name: str) -> None:
    rates = [SETTINGS[name].rate(epoch / 100) for epoch in (0, 59, 60, 74, 75, 80, 90, 99)]
    expected = {
        "cached": [1, 1, 0.2, 0.2, 0.04, 0.04, 0.008, 0.008],
        "simclr": [1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01],
    }.get(name, [(1 + np.cos(np.pi * epoch / 100)) / 2 for epoch in (0, 59, 60, 74, 75, 80, 90, 99)])
    assert rates == pytest.approx(expected)


def test_constants_of_the_published_probes() -> None:
    """SPEC §4.2, row by row: rates, batch, schedule, weight decay, initialization, augmentation."""
    steps, tenths = ((0.6, 0.75, 0.9), 0.2), ((0.6, 0.8), 0.1)
    table = {
        "cached": ((0.1, 0.5, 1.0, 1.5, 2.0), 512, steps, 0.0, 0.0, False),
        "simsiam": ((30.0,), 512, None, 0.0, 0.0, True),
        "simclr": ((1.0,), 256, tenths, 0.0, 0.0, True),
        "swav": ((0.3,), 256, None, 1e-6, 0.01, True),
    }
    for name, s in SETTINGS.items():
        schedule = (s.marks, s.factor) if s.marks else None
        assert (s.lrs, s.batch, schedule, s.weight_decay, s.init_std, s.augmented) == table[name]
    assert set(SETTINGS) == set(table)
    assert Linear().epochs == 100


def test_cosine_in_place_of_steps(encoder: LoadedEncoder, digits: Data) -> None:
    usual = effssl.evaluate("linear", encoder, digits, epochs=4, lr=[0.5])
    cosine = effssl.evaluate("linear", encoder, digits, epochs=4, lr=[0.5], schedule="cosine")
    assert usual.constants["lr_decay"] == "x0.2 at 2, 3, 4"
    assert cosine.constants["lr_decay"] == "cosine to 0"
    assert cosine.value != usual.value


def test_a_long_search_shows_its_progress(
    features: tuple[Features, Features], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from effssl.evaluation import knn

    train, test = features
    seen: list[int] = []
    nearest(test.h, train.h, 5, seen.append)
    assert sum(seen) == len(test.h)
    expected = knn_accuracy(train, test, 5)
    monkeypatch.setattr(knn, "LONG", 0)
    assert knn_accuracy(train, test, 5, text="neighbors") == expected


def test_weight_decay_is_torchs(features: tuple[Features, Features]) -> None:
    train, _ = features
    setting = Setting((0.3,), 512, weight_decay=0.1)
    g = generator(0, "linear")
    weight, bias, _ = train_linear(cached_batches(train, 512, g), train.h.shape[1], 10, setting, (0.3,), 1, g)
    g = generator(0, "linear")
    layer = torch.nn.Linear(train.h.shape[1], 10)
    bound = train.h.shape[1] ** -0.5
    layer.weight.data = (torch.rand(1, train.h.shape[1], 10, generator=g) * 2 - 1).mul(bound)[0].T.clone()
    layer.bias.data = (torch.rand(1, 1, 10, generator=g) * 2 - 1).mul(bound)[0, 0]
    optimizer = torch.optim.SGD(layer.parameters(), 0.3, momentum=0.9, weight_decay=0.1)
    for rows in torch.randperm(len(train.h), generator=g).split(512):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(layer(train.h[rows]), train.labels[rows]).backward()
        optimizer.step()
    assert torch.allclose(weight[0].T, layer.weight, atol=1e-4)
    assert torch.allclose(bias[0, 0], layer.bias, atol=1e-4)


def test_augmented_features_are_those_of_random_crops(encoder: LoadedEncoder, digits: Data) -> None:
    batches = list(augmented_batches(encoder, digits.train, 500, seed=0)(0))
    assert sum(len(y) for _, y in batches) == len(digits.train)  # the partial batch too
    views = next(crops_of(encoder, digits.train, 500, 0).epoch(0))
    with torch.inference_mode():
        expected = encoder.encoder(views.large[0])
    assert torch.allclose(batches[0][0], expected, atol=1e-5)
    assert torch.equal(batches[0][1], digits.train.labels[views.index])
    later = next(augmented_batches(encoder, digits.train, 500, seed=0)(1))
    assert not torch.equal(later[0], batches[0][0])


def test_augmented_probe_learns_and_chooses_its_rate_on_validation(encoder: LoadedEncoder, digits: Data) -> None:
    score = effssl.evaluate("linear", encoder, digits, setting="swav", epochs=8, lr=[1e-6, 1.0])
    assert score.constants["lr"] == 1.0
    assert "validation (143" in score.constants["lr_chosen_on"]
    assert score.accuracy > 18  # a random encoder; chance is 10
    assert score.also["top5"] >= score.also["best_epoch_accuracy"] >= score.accuracy


def test_neighbors_take_little_memory_and_are_right(features: tuple[Features, Features]) -> None:
    train, test = features
    similarity, index = nearest(test.h, train.h, 7)
    whole = torch.nn.functional.normalize(test.h, dim=1) @ torch.nn.functional.normalize(train.h, dim=1).T
    assert torch.allclose(similarity, whole.sort(dim=1, descending=True).values[:, :7], atol=1e-6)
    assert torch.allclose(whole.gather(1, index), similarity, atol=1e-6)


def test_labels_and_classes_must_fit(encoder: LoadedEncoder, digits: Data) -> None:
    import dataclasses

    bare = dataclasses.replace(digits.train, labels=None)
    with pytest.raises(effssl.RequestError, match="no labels"):
        effssl.evaluate("knn", encoder, dataclasses.replace(digits, train=bare))
    with pytest.raises(effssl.RequestError, match="no labelled test images"):
        effssl.evaluate("linear", encoder, dataclasses.replace(digits, test=None))
    other = dataclasses.replace(digits.test, labels=digits.test.labels + 5)
    with pytest.raises(effssl.RequestError, match="classes that train does not have"):
        effssl.evaluate("knn", encoder, dataclasses.replace(digits, test=other))
    with pytest.raises(effssl.RequestError, match=r"unknown key 'kk' \(did you mean k"):
        effssl.evaluate("knn", encoder, digits, kk=5)
