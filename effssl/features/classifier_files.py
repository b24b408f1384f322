"""Classifier files: an encoder file that also holds a classifier of its features; no code in it is run."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from effssl.features.classifier import Classifier, ExpectedAccuracy
from effssl.features.heads import Head, LinearHead, NeighborHead
from effssl.network.loaded import LoadedEncoder, dump_encoder, is_encoder_file, read_classifier
from effssl.runtime.errors import RequestError
from effssl.runtime.files import write_atomically
from effssl.runtime.private_paths import strip_values
from effssl.runtime.reading import describe, one_line

SUFFIX = ".safetensors"


def save_classifier(path: Path, classifier: Classifier, encoder: LoadedEncoder) -> None:
    """Write a classifier with its encoder; other commands read the file as an encoder."""
    head = classifier.head
    if isinstance(head, LinearHead):
        tensors, kind, k = {"weight": head.weight, "bias": head.bias}, "linear", 0
    else:
        tensors, kind, k = {"bank": head.bank, "labels": head.labels}, "knn", head.k
    about = {
        "kind": kind,
        "k": k,
        "name": classifier.name,
        "classes": classifier.classes,
        "temperature": classifier.temperature,
        "expected": asdict(classifier.expected),
    }
    write_atomically(path, dump_encoder(encoder.encoder, strip_values(encoder.about) | {"classifier": about}, tensors))


def is_classifier_file(path: Path) -> bool:
    """Whether a file is an encoder file with a classifier."""
    return path.is_file() and is_encoder_file(path) and read_classifier(path)[0] is not None


def load_classifier(path: Path, dim: int) -> Classifier:
    """The classifier of a file, which must fit features of this width."""
    about, tensors = read_classifier(path)
    try:
        classes, temperature = [str(name) for name in about["classes"]], float(about["temperature"])
        if len(set(classes)) < max(2, len(classes)):
            raise ValueError(f"its classes are {one_line(classes)}")
        if not 0 < temperature < math.inf:
            raise ValueError(f"its temperature is {temperature}")
        head = _head(about, tensors, len(classes), dim)
        return Classifier(str(about["name"]), head, classes, temperature, _expected(**about["expected"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"the classifier in {path} cannot be used: {describe(error)}") from None


def _expected(compared: dict[str, float], images: int, **shares: float) -> ExpectedAccuracy:
    compared = {str(name): float(accuracy) for name, accuracy in dict(compared).items()}
    return ExpectedAccuracy(images=int(images), compared=compared, **{k: float(v) for k, v in shares.items()})


def _head(about: dict[str, Any], tensors: dict[str, Tensor], classes: int, dim: int) -> Head:
    if about["kind"] == "linear":
        weight, bias = tensors["weight"].float(), tensors["bias"].float()
        if weight.shape != (classes, dim) or bias.shape != (classes,):
            raise ValueError(f"a weight of shape {tuple(weight.shape)} for {classes} classes and {dim} features")
        return LinearHead(weight, bias)
    bank, labels, k = tensors["bank"].float(), tensors["labels"].long(), int(about["k"])
    if bank.shape != (len(labels), dim) or k < 1 or sorted(set(labels.tolist())) != list(range(classes)):
        raise ValueError(f"{len(labels)} labels for images of shape {tuple(bank.shape)} and {dim} features")
    return NeighborHead(bank, labels, k, classes)
