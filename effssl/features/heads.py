"""Classifiers on L2-normalized features: nearest neighbors, and logistic regression."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from effssl.features.knn import TEMPERATURE
from effssl.features.logistic import fit_quietly

NEIGHBORS = (1, 3, 10)  # of each class
INVERSE_PENALTIES = (1.0, 10.0, 100.0, 1000.0)  # scikit-learn's C, for features of length one
ITERATIONS = 1000


@dataclass(frozen=True)
class LinearHead:
    """A linear layer: weight C×D, bias C."""

    weight: Tensor
    bias: Tensor

    def logits(self, x: Tensor) -> Tensor:
        """Logits N×C."""
        return x @ self.weight.T + self.bias


@dataclass(frozen=True)
class NeighborHead:
    """The class whose k nearest labelled images are most similar: bank N×D, labels N.

    Unlike a vote, in which one neighbor is as good as any other, this says how sure it is for k = 1, too.
    """

    bank: Tensor
    labels: Tensor
    k: int
    classes: int

    @cached_property
    def members(self) -> list[Tensor]:
        """Rows of the labelled images of each class."""
        return [(self.labels == label).nonzero().squeeze(1) for label in range(self.classes)]

    def logits(self, x: Tensor) -> Tensor:
        """Mean similarity to the k nearest images of each class, N×C."""
        similarity = x @ self.bank.T
        nearest = [similarity[:, rows].topk(min(self.k, len(rows))).values.mean(1) for rows in self.members]
        return torch.stack(nearest, 1) / TEMPERATURE


Head = LinearHead | NeighborHead


@dataclass(frozen=True)
class Candidate:
    """A kind of classifier with its one setting."""

    kind: str  # knn or linear
    value: float  # k, or C

    def __str__(self) -> str:
        return f"kNN (k={self.value:g})" if self.kind == "knn" else f"linear (C={self.value:g})"

    def fit(self, x: Tensor, y: Tensor, classes: int) -> Head:
        """Train on L2-normalized features N×D and labels N, in which every class occurs."""
        if self.kind == "knn":
            return NeighborHead(x, y, int(self.value), classes)
        return _fit_linear(x, y, self.value)


CANDIDATES = [
    *(Candidate("linear", value) for value in INVERSE_PENALTIES),
    *(Candidate("knn", k) for k in NEIGHBORS),
]


def _fit_linear(x: Tensor, y: Tensor, inverse_penalty: float) -> LinearHead:
    from sklearn.linear_model import LogisticRegression

    values = x.double().numpy()
    mean = values.mean(0)
    # One scale for all dimensions: that of each cannot be estimated from few images.
    scale = max(float(np.sqrt(((values - mean) ** 2).sum(1).mean())), 1e-12)
    # Cross-validation judges a fit that has not converged, too.
    unfitted = LogisticRegression(C=inverse_penalty, max_iter=ITERATIONS)
    model = fit_quietly(unfitted, (values - mean) / scale, y.numpy())
    coefficients, bias = model.coef_, model.intercept_
    if len(coefficients) == 1:  # of two classes, scikit-learn keeps the second one's
        coefficients, bias = (np.concatenate([np.zeros_like(part), part]) for part in (coefficients, bias))
    weight = coefficients / scale
    bias = bias - weight @ mean
    return LinearHead(torch.from_numpy(weight).float(), torch.from_numpy(bias).float())
