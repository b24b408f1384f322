"""What is left of the accuracy when the test images are rotated."""

from __future__ import annotations

from effssl.data import Data
from effssl.evaluation.options import Robustness
from effssl.evaluation.score import Score
from effssl.features.extract import extract, labelled
from effssl.features.knn import knn_accuracy
from effssl.network.loaded import LoadedEncoder


def evaluate_robustness(encoder: LoadedEncoder, data: Data, options: Robustness) -> Score:
    """kNN accuracy for test images turned by 0, 90, 180 and 270 degrees; the value is the mean over the four."""
    train_images, test_images = labelled(data, "robustness")
    train = extract(encoder, train_images, "train features")
    accuracy = {}
    for turns in range(4):
        test = extract(encoder, test_images, f"test features at {90 * turns}°", turns)
        accuracy[f"at_{90 * turns}"] = knn_accuracy(train, test, options.k, options.temperature, "neighbors")
    constants = {"k": min(options.k, len(train.h)), "temperature": options.temperature, "bank": "train, not rotated"}
    score = Score(
        "robustness", sum(accuracy.values()) / 4, "mean accuracy over four rotations", constants, also=accuracy
    )
    return score.on(data, train=(train_images, train.rows), test=(test_images, test.rows))
