"""Mean average precision and recall when training images are ranked by similarity to each test image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.data import Data
from effssl.evaluation.protocol import EvaluationProtocol
from effssl.evaluation.score import Score
from effssl.features.extract import extract, labelled
from effssl.features.knn import CHUNK
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.progress import progress_bar
from effssl.schema import Between


@dataclass(frozen=True)
class RetrievalOptions:
    """Options of retrieval."""

    recall_at: Annotated[tuple[int, ...], Between(1)] = (1, 5, 10)
    """for each k: is one of the k most similar training images of the same class?"""
    precision_at: Annotated[tuple[int, ...], Between(1)] = (5,)
    """for each k: which share of the k most similar training images is of the same class?"""


def average_precision(relevant: Tensor) -> Tensor:
    """Mean precision at the ranks of the relevant items, for each row of a Q×N boolean ranking; nan without any."""
    hits = relevant.float().cumsum(1)
    ranks = torch.arange(1, relevant.shape[1] + 1, dtype=torch.float32)
    return (hits / ranks * relevant).sum(1) / hits[:, -1]


def evaluate_retrieval(encoder: LoadedEncoder, data: Data, options: RetrievalOptions) -> Score:
    """Mean average precision over the whole ranking, and of its first k: recall@k and precision@k."""
    train_images, test_images = labelled(data, "retrieval")
    train = extract(encoder, train_images, "train features")
    test = extract(encoder, test_images, "test features")
    assert train.labels is not None
    assert test.labels is not None
    bank, query = F.normalize(train.h, dim=1), F.normalize(test.h, dim=1)
    rows = max(1, CHUNK // 16 // len(bank))
    precision, found, shares = [], [], []
    with progress_bar("ranking", len(query)) as advance:
        for part, labels in zip(query.split(rows), test.labels.split(rows), strict=True):
            order = (part @ bank.T).argsort(dim=1, descending=True, stable=True)
            relevant = train.labels[order] == labels[:, None]
            precision.append(average_precision(relevant))
            found.append(torch.stack([relevant[:, :k].any(1) for k in options.recall_at], 1))
            shares.append(torch.stack([relevant[:, :k].float().mean(1) for k in options.precision_at], 1))
            advance(len(part))
    each = torch.cat(precision)
    known = ~each.isnan()  # a class without training images has no average precision
    recall = 100 * torch.cat(found).float().mean(0)
    also = {f"recall_at_{k}": float(r) for k, r in zip(options.recall_at, recall, strict=True)}
    precision_at = 100 * torch.cat(shares).mean(0)
    also |= {f"precision_at_{k}": float(p) for k, p in zip(options.precision_at, precision_at, strict=True)}
    constants = {"gallery": "train", "queries": "test", "similarity": "cosine", "queries_counted": int(known.sum())}
    score = Score("retrieval", 100 * float(each[known].mean()), "mAP", constants, also)
    return score.on(data, train=(train_images, train.rows), test=(test_images, test.rows))


PROTOCOL = EvaluationProtocol("retrieval", RetrievalOptions, evaluate_retrieval)
