"""kNN accuracy when the test images are rotated and the training images are not."""

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
class RobustnessOptions:
    """Options of the k-nearest-neighbor classifier."""

    k: Count = 0
    """number of neighbors; 0 is 200, or as many as a class has images on average if these are fewer"""
    temperature: Small = TEMPERATURE
    """of the weights exp(cosine / temperature)"""


def evaluate_robustness(encoder: LoadedEncoder, data: Data, options: RobustnessOptions) -> Score:
    """kNN accuracy for test images rotated by 0, 90, 180 and 270 degrees; the value is the mean over the four."""
    train_images, test_images = labelled(data, "robustness")
    train = extract(encoder, train_images, "train features")
    assert train.labels is not None
    k = options.k or fitting_k(train.labels)
    accuracy = {}
    for turns in range(4):
        test = extract(encoder, test_images, f"test features at {90 * turns}°", turns)
        accuracy[f"at_{90 * turns}"] = knn_accuracy(train, test, k, options.temperature, "neighbors")
    constants = {"k": min(k, len(train.h)), "temperature": options.temperature, "bank": "train, not rotated"}
    mean = sum(accuracy.values()) / len(accuracy)
    score = Score("robustness", mean, "mean accuracy over four rotations", constants, also=accuracy)
    return score.on(data, train=(train_images, train.rows), test=(test_images, test.rows))


PROTOCOL = EvaluationProtocol("robustness", RobustnessOptions, evaluate_robustness)
