"""Outliers, against brute force and in blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import effssl
from effssl.explore.feature_files import Embedding


def test_outliers_are_far_from_their_nearest_others(
    embedding: Embedding, similarity: np.ndarray, small_blocks: list[int]
) -> None:
    others = np.sort(1 - similarity[~np.eye(68, dtype=bool)].reshape(68, 67), axis=1)
    for k in (1, 6, 500):
        expected = others[:, :k].mean(1)
        found = effssl.outliers(features=embedding, k=k, top=10)
        np.testing.assert_allclose([one.distance for one in found], np.sort(expected)[::-1][:10], atol=1e-5)
        for one in found:
            row = embedding.names.index(one.name)
            assert one.distance == pytest.approx(expected[row], abs=1e-5)
            assert 1 - similarity[row, embedding.names.index(one.nearest)] == pytest.approx(others[row, 0], abs=1e-5)
    assert small_blocks


def test_noise_is_the_outlier_among_photographs(run: Path, folder: Path) -> None:
    assert Path(effssl.outliers(run, folder, top=1, workers=0)[0].name).name == "noise.png"
