"""Diverse subsets: greedy k-center, against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import effssl
from effssl.explore.feature_files import Embedding
from effssl.explore.subset import farthest_first

CPU = torch.device("cpu")


def test_a_subset_is_greedy_k_center(
    embedding: Embedding, similarity: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("effssl.explore.subset.CANDIDATES", 4)
    for seed in (0, 1):
        chosen, distances, radius = farthest_first(embedding.features, 25, seed, CPU)
        for i in range(1, 25):
            far = (1 - similarity[:, chosen[:i]]).min(1)
            assert distances[i] == pytest.approx(far.max(), abs=1e-5)
            assert far[chosen[i]] == pytest.approx(far.max(), abs=1e-5)
        assert radius == pytest.approx((1 - similarity[:, chosen]).min(1).max(), abs=1e-5)
        assert len(set(chosen)) == 25
    first, again = (effssl.subset(features=embedding, size=10, seed=1) for _ in range(2))
    assert first == again
    assert first.rows != effssl.subset(features=embedding, size=10, seed=0).rows
    everything = effssl.subset(features=embedding, size=68)
    assert sorted(everything.names) == sorted(embedding.names)
    assert everything.radius == pytest.approx(0, abs=1e-6)


def test_images_that_are_all_the_same_can_be_chosen_from() -> None:
    chosen, distances, radius = farthest_first(np.ones((5000, 4), np.float32), 50, 0, CPU)
    assert len(set(chosen)) == 50
    assert [*distances, radius] == pytest.approx([0] * 51, abs=1e-6)
