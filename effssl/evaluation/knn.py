"""Weighted k-nearest-neighbor accuracy. Wu et al. 2018."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from effssl.data import Data
from effssl.errors import RequestError
from effssl.evaluation.features import Features, extract
from effssl.evaluation.score import Score
from effssl.network.loaded import LoadedEncoder

NEIGHBORS, TEMPERATURE = 200, 0.1
CHUNK = 1 << 24  # similarities held at a time


def knn_votes(query: Tensor, bank: Tensor, labels: Tensor, classes: int, k: int, temperature: float) -> Tensor:
    """Votes per class, Q×classes: the k nearest by cosine, with weights exp(cosine / temperature) up to a factor."""
    if k < 1 or temperature <= 0:
        raise RequestError(f"kNN needs at least one neighbor and a temperature above 0, not {k} and {temperature}")
    query, bank = F.normalize(query, dim=1), F.normalize(bank, dim=1)
    k = min(k, len(bank))
    votes = query.new_zeros(len(query), classes)
    rows = max(1, CHUNK // len(bank))
    for start in range(0, len(query), rows):
        similarity, index = (query[start : start + rows] @ bank.T).topk(k, dim=1)  # chunk×k
        weight = ((similarity - similarity[:, :1]) / temperature).exp()  # relative to the nearest: cannot overflow
        votes[start : start + rows].scatter_add_(1, labels[index], weight)
    return votes


def knn_accuracy(train: Features, test: Features, k: int = NEIGHBORS, temperature: float = TEMPERATURE) -> float:
    """Percent of test images whose class wins the vote of their neighbors in train."""
    assert train.labels is not None
    assert test.labels is not None
    classes = int(max(train.labels.max(), test.labels.max())) + 1
    votes = knn_votes(test.h, train.h, train.labels, classes, k, temperature)
    return 100 * (votes.argmax(1) == test.labels).float().mean().item()


def evaluate_knn(encoder: LoadedEncoder, data: Data, k: int = NEIGHBORS, temperature: float = TEMPERATURE) -> Score:
    """The bank is the whole training set under the test transform."""
    assert data.test is not None
    train, test = extract(encoder, data.train, "train features"), extract(encoder, data.test, "test features")
    constants = {
        "k": min(k, len(train.h)),
        "temperature": temperature,
        "similarity": "cosine",
        "bank": "train, no augmentation",
    }
    return Score("knn", knn_accuracy(train, test, k, temperature), constants)
