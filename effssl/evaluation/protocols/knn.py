"""Weighted k-nearest-neighbor accuracy on frozen features. Wu et al. 2018."""

from __future__ import annotations

from dataclasses import dataclass

from effssl.data import Data
from effssl.evaluation.protocol import EvaluationProtocol
from effssl.evaluation.score import Score
from effssl.features.extract import extract, labelled
from effssl.features.knn import TEMPERATURE, fitting_k, knn_accuracy
from effssl.network.loaded import LoadedEncoder
from effssl.schema import Count, Small


@dataclass(frozen=True)
class KnnOptions:
    """Options of the k-nearest-neighbor classifier."""

    k: Count = 0
    """number of neighbors; 0 is 200, or as many as a class has images on average if these are fewer"""
    temperature: Small = TEMPERATURE
    """of the weights exp(cosine / temperature)"""


def evaluate_knn(encoder: LoadedEncoder, data: Data, options: KnnOptions) -> Score:
    """Accuracy on the test images; the bank is the whole training set under the test transform."""
    train_images, test_images = labelled(data, "knn")
    train = extract(encoder, train_images, "train features")
    test = extract(encoder, test_images, "test features")
    assert train.labels is not None
    k = options.k or fitting_k(train.labels)
    accuracy = knn_accuracy(train, test, k, options.temperature, "neighbors")
    constants = {
        "k": min(k, len(train.h)),
        "temperature": options.temperature,
        "similarity": "cosine",
        "bank": "train, no augmentation",
    }
    score = Score("knn", accuracy, constants=constants)
    return score.on(data, train=(train_images, train.rows), test=(test_images, test.rows))


PROTOCOL = EvaluationProtocol("knn", KnnOptions, evaluate_knn)
