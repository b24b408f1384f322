"""Retrieval against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch.nn.functional as F
from sklearn.metrics import average_precision_score

import effssl
from effssl.data import Data
from effssl.features.extract import Features
from effssl.network.loaded import LoadedEncoder


def test_retrieval_equals_scikit_learn(
    encoder: LoadedEncoder, digits: Data, features: tuple[Features, Features]
) -> None:
    train, test = (F.normalize(part.h.double(), dim=1) for part in features)
    similarity = (test @ train.T).numpy()
    relevant = (features[1].labels[:, None] == features[0].labels).numpy()
    expected = np.mean([average_precision_score(r, s) for r, s in zip(relevant, similarity, strict=True)])
    score = effssl.evaluate("retrieval", encoder, digits, recall_at=[1, 3])
    assert score.value == pytest.approx(100 * expected, abs=0.05)
    order = np.argsort(-similarity, axis=1)
    for k in (1, 3):
        hits = np.take_along_axis(relevant, order[:, :k], 1).any(1).mean()
        assert score.also[f"recall_at_{k}"] == pytest.approx(100 * hits, abs=0.6)
