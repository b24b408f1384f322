"""Weighted k-nearest-neighbor accuracy. Wu et al. 2018."""

from __future__ import annotations

from effssl.data import Data
from effssl.evaluation.options import Knn
from effssl.evaluation.score import Score
from effssl.features.extract import extract, labelled
from effssl.features.knn import knn_accuracy
from effssl.network.loaded import LoadedEncoder


def evaluate_knn(encoder: LoadedEncoder, data: Data, options: Knn) -> Score:
    """The bank is the whole training set under the test transform."""
    images = labelled(data, "knn")
    train, test = extract(encoder, images[0], "train features"), extract(encoder, images[1], "test features")
    constants = {
        "k": min(options.k, len(train.h)),
        "temperature": options.temperature,
        "similarity": "cosine",
        "bank": "train, no augmentation",
    }
    score = Score("knn", knn_accuracy(train, test, options.k, options.temperature, "neighbors"), constants=constants)
    return score.on(data, train=(images[0], train.rows), test=(images[1], test.rows))
