"""Nearest neighbors and their vote against scikit-learn, on real images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.neighbors import KNeighborsClassifier

import effssl
from effssl.features import knn
from effssl.features.extract import Features
from effssl.features.knn import knn_accuracy, knn_votes, largest, nearest
from effssl.runtime.randomness import generator


@pytest.fixture(scope="module")
def features() -> tuple[Features, Features]:
    """Pixels of the digits in place of features."""
    data = effssl.open_data("digits")
    parts = [(images.pixels.flatten(1).float(), images.labels) for images in (data.train, data.test)]
    train, test = (Features(x, labels, torch.arange(len(x))) for x, labels in parts)
    return train, test


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
    train, test = features
    similarity, index = nearest(test.h, train.h, 50)
    monkeypatch.setattr(knn, "CHUNK", 7 * len(train.h))
    in_chunks, same = nearest(test.h, train.h, 50)
    assert torch.allclose(in_chunks, similarity, atol=1e-6)
    votes = [knn_votes(similarity, train.labels[rows], 10) for rows in (index, same)]
    assert torch.allclose(*votes, rtol=1e-3)


@pytest.mark.parametrize(("columns", "k"), [(1, 1), (7, 3), (200, 200), (1003, 10), (5000, 1), (4099, 200)])
def test_the_search_by_groups_finds_what_topk_finds(columns: int, k: int) -> None:
    x = torch.randn(20, columns, generator=generator(0, "largest", columns))
    x[:5] = (x[:5] * 2).round() / 2  # many equal values, as duplicates in a bank give
    values, index = largest(x, k)
    assert torch.equal(values, x.topk(k).values)
    assert torch.equal(x.gather(1, index), values)
    assert all(len(set(row)) == k for row in index.tolist())


def test_a_long_search_shows_its_progress(
    features: tuple[Features, Features], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    train, test = features
    seen: list[int] = []
    nearest(test.h, train.h, 5, seen.append)
    assert sum(seen) == len(test.h)
    expected = knn_accuracy(train, test, 5)
    monkeypatch.setattr(knn, "LONG", 0)
    assert knn_accuracy(train, test, 5, text="neighbors") == expected


def test_neighbors_take_little_memory_and_are_right(features: tuple[Features, Features]) -> None:
    train, test = features
    similarity, index = nearest(test.h, train.h, 7)
    whole = F.normalize(test.h, dim=1) @ F.normalize(train.h, dim=1).T
    assert torch.allclose(similarity, whole.sort(dim=1, descending=True).values[:, :7], atol=1e-6)
    assert torch.allclose(whole.gather(1, index), similarity, atol=1e-6)
