"""kNN accuracy when the test images are rotated and the training images are not."""

from __future__ import annotations

from dataclasses import dataclass

from effssl.data import Data
from effssl.evaluation.protocol import EvaluationProtocol
from effssl.evaluation.score import Score
from effssl.features.extract import extract, labelled
from effssl.features.knn import TEMPERATURE, K, knn_accuracy
from effssl.network.loaded import LoadedEncoder
from effssl.schema import Positive, Small


@dataclass(frozen=True)
class RobustnessOptions:
    """Options of the k-nearest-neighbor classifier."""

    k: Positive = K
    """number of neighbors"""
    temperature: Small = TEMPERATURE
    """of the weights exp(cosine / temperature)"""


def evaluate_robustness(encoder: LoadedEncoder, data: Data, options: RobustnessOptions) -> Score:
    """kNN accuracy for test images rotated by 0, 90, 180 and 270 degrees; the value is the mean over the four."""
    train_images, test_images = labelled(data, "robustness")
    train = extract(encoder, train_images, "train features")
    accuracy = {}
    for turns in range(4):
        test = extract(encoder, test_images, f"test features at {90 * turns}°", turns)
        accuracy[f"at_{90 * turns}"] = knn_accuracy(train, test, options.k, options.temperature, "neighbors")
    constants = {"k": min(options.k, len(train.h)), "temperature": options.temperature, "bank": "train, not rotated"}
    mean = sum(accuracy.values()) / len(accuracy)
    score = Score("robustness", mean, "mean accuracy over four rotations", constants, also=accuracy)
    return score.on(data, train=(train_images, train.rows), test=(test_images, test.rows))


PROTOCOL = EvaluationProtocol("robustness", RobustnessOptions, evaluate_robustness)
