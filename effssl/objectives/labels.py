"""Which labels are wrong and which are known: pure functions of the seed and the data set's labels."""

from __future__ import annotations

import torch
from torch import Tensor

from effssl.data.splits import pick_per_class
from effssl.objectives.term import RunInfo
from effssl.runtime.errors import RequestError
from effssl.runtime.randomness import generator


def required_labels(info: RunInfo, term: str) -> Tensor:
    """The labels of all training images, or a clear refusal."""
    if info.labels is None:
        raise RequestError(
            f"{term} needs labels, which this data set does not have (--labels folders reads sub-folders)"
        )
    return info.labels


def noisy_labels(labels: Tensor, classes: int, fraction: float, seed: int) -> Tensor:
    """Replace this fraction of the labels by another class each, drawn uniformly; fixed for a run.

    >>> noisy_labels(torch.zeros(4, dtype=torch.long), 2, 1.0, seed=0)
    tensor([1, 1, 1, 1])
    """
    g = generator(seed, "label noise")
    chosen = torch.randperm(len(labels), generator=g)[: round(fraction * len(labels))]
    shift = torch.randint(1, max(2, classes), (len(chosen),), generator=g)
    noisy = labels.clone()
    noisy[chosen] = (labels[chosen] + shift) % classes
    return noisy


def known_labels(labels: Tensor, fraction: float, seed: int) -> Tensor:
    """Booleans: a fixed random choice of this fraction of every class."""
    known = torch.zeros(len(labels), dtype=torch.bool)
    known[pick_per_class(labels, lambda count: round(fraction * count), generator(seed, "known labels"))] = True
    return known
