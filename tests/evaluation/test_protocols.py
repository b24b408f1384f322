"""kNN and the linear probe against scikit-learn and by hand, on real features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

import effssl
from effssl.evaluation import Features, extract
from effssl.evaluation.knn import knn_accuracy, knn_votes
from effssl.evaluation.linear import linear_accuracy, train_linear
from effssl.network import build_encoder
from effssl.network.loaded import LoadedEncoder
from effssl.randomness import seeded


@pytest.fixture(scope="module")
def encoder() -> LoadedEncoder:
    about = {"image_size": 16, "mean": [0.5] * 3, "std": [0.25] * 3}
    with seeded(0, "test"):
        made = LoadedEncoder(build_encoder("small", 16), about)
    return made.requires_grad_(False).eval()


@pytest.fixture(scope="module")
def features(encoder: LoadedEncoder) -> tuple[Features, Features]:
    data = effssl.open_data("digits")
    return extract(encoder, data.train), extract(encoder, data.test)


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


def test_linear_step_is_sgd_with_momentum(features: tuple[Features, Features]) -> None:
    """Two epochs by our closed-form gradient equal torch's SGD and autograd on the same batches."""
    train, _ = features
    lrs = (0.1, 0.5)
    weight, bias, _ = train_linear(train, 10, lrs, epochs=2, batch=512, seed=3)
    from effssl.randomness import generator

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
    weight, bias, _ = train_linear(train, 10, (0.5,), epochs=100, batch=512, seed=0)
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
