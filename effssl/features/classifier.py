"""A classifier on features: its head, its classes, and how good it is expected to be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.features.heads import Head
from effssl.runtime.errors import RequestError

ROWS = 4096  # images that are classified at a time


@dataclass(frozen=True)
class ExpectedAccuracy:
    """Accuracy in percent to expect for other images of the same kind, with its 95 % interval."""

    accuracy: float
    low: float
    high: float
    chance: float  # of always saying the most frequent class
    images: int  # with labels
    compared: dict[str, float]  # cross-validated accuracy of the best classifier of each kind


@dataclass(frozen=True)
class Classifier:
    """A classifier on features of an encoder, with calibrated probabilities."""

    name: str  # e.g. linear (C=10)
    head: Head
    classes: list[str]
    temperature: float
    expected: ExpectedAccuracy

    def predict(self, features: Tensor) -> Tensor:
        """Probability of each class, N×C, from features N×D."""
        return F.softmax(self.head.logits(F.normalize(features, dim=1)) / self.temperature, 1)

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """The same for many features, which may be on the disk."""
        parts = [np.empty((0, len(self.classes)), np.float32)]
        for start in range(0, len(features), ROWS):
            x = torch.from_numpy(np.array(features[start : start + ROWS], np.float32))
            if not bool(x.isfinite().all()):
                raise RequestError("some features are not finite; compute them again with another encoder")
            parts.append(self.predict(x).numpy())
        return np.concatenate(parts)
