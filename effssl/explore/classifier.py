"""The best classifier for few labels, by cross-validation, with calibrated probabilities and its expected accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.explore.similarity import normalized
from effssl.explore.tuning import NAME, Tuner
from effssl.features.classifier import Classifier, ExpectedAccuracy
from effssl.features.heads import CANDIDATES, Head
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.progress import progress_bar
from effssl.runtime.randomness import generator

FOLDS = 5
DRAWS = 500  # bootstrap samples
TEMPERATURES = torch.logspace(-1.5, 1.5, 121)
CPU = torch.device("cpu")
Z = 1.959964  # of a 95 % interval


def train_classifier(
    features: np.ndarray, labels: Sequence[str], tuner: Tuner | None = None
) -> tuple[Classifier, LoadedEncoder | None]:
    """The candidate with the best cross-validated accuracy, trained on all labelled images.

    Where that is fine-tuning, it comes with the fine-tuned encoder, whose features it reads.
    """
    classes = sorted(set(labels))
    x = normalized(features, CPU)
    y = torch.tensor([classes.index(label) for label in labels])
    logits = _cross_validate(x, y, len(classes), tuner)
    names, kinds = [str(one) for one in CANDIDATES] + [NAME], [one.kind for one in CANDIDATES] + [NAME]
    right = torch.stack([part.argmax(1) == y for part in logits])  # candidates × N
    score = right.double().mean(1)
    # Of equally accurate ones, the one with the smaller cross-entropy.
    entropy = torch.stack([F.cross_entropy(part / _temperature(part, y), y) for part in logits])
    order = sorted(range(len(logits)), key=lambda i: (-float(score[i]), float(entropy[i])))
    of_kind = {kinds[i]: i for i in reversed(order)}  # the best of each kind
    best = order[0]
    compared = {names[i]: 100 * float(score[i]) for i in sorted(of_kind.values(), key=order.index)}
    tuned: LoadedEncoder | None = None
    head: Head
    if best < len(CANDIDATES):
        head = CANDIDATES[best].fit(x, y, len(classes))
    else:
        assert tuner is not None
        tuned, head = tuner.fit(torch.arange(len(y)), y, len(classes))
    expected = _expected(right, y, compared)
    return Classifier(names[best], head, classes, _temperature(logits[best], y), expected), tuned


def _cross_validate(x: Tensor, y: Tensor, classes: int, tuner: Tuner | None) -> list[Tensor]:
    """Logits of every image by each candidate, trained on the other folds."""
    fold = stratified_folds(y)
    logits = [torch.empty(len(y), classes) for _ in CANDIDATES]
    if tuner is not None:
        logits.append(_cross_validate_tuner(tuner, y, classes, fold))
    steps = len(CANDIDATES) * int(fold.max() + 1)
    with progress_bar("cross-validation", steps) as advance:
        for part in range(int(fold.max()) + 1):
            test = fold == part
            for candidate, out in zip(CANDIDATES, logits, strict=False):
                out[test] = candidate.fit(x[~test], y[~test], classes).logits(x[test])
                advance(1)
    return logits


def _cross_validate_tuner(tuner: Tuner, y: Tensor, classes: int, fold: Tensor) -> Tensor:
    logits = torch.empty(len(y), classes)
    for part in range(int(fold.max()) + 1):
        train, test = (fold != part).nonzero().squeeze(1), (fold == part).nonzero().squeeze(1)
        logits[test] = tuner.logits(tuner.fit(train, y[train], classes), test)
    return logits


def stratified_folds(y: Tensor) -> Tensor:
    """A fold for each image; two images of a class are never all in one fold, and folds are of equal size.

    >>> sorted(stratified_folds(torch.tensor([0, 0, 1, 1, 1])).tolist())
    [0, 1, 2, 3, 4]
    """
    shuffled = torch.randperm(len(y), generator=generator(0, "folds"))
    order = shuffled[y[shuffled].argsort(stable=True)]  # class by class
    fold = torch.empty_like(y)
    fold[order] = torch.arange(len(y)) % min(FOLDS, len(y))
    return fold


def _temperature(logits: Tensor, y: Tensor) -> float:
    """The temperature that calibrates cross-validated logits best. Guo et al. 2017.

    Targets are as Platt (1999) proposes: however well few images are separated, the next may be classified wrongly.
    """
    count, classes = logits.shape
    rest = 1 / (count + 2)
    targets = torch.full_like(logits, rest / (classes - 1))
    targets[torch.arange(count), y] = 1 - rest
    losses = torch.stack([F.cross_entropy(logits / t, targets) for t in TEMPERATURES])
    return float(TEMPERATURES[losses.argmin()])


def _expected(right: Tensor, y: Tensor, compared: dict[str, float]) -> ExpectedAccuracy:
    """The accuracy of the choice among candidates: that of the chosen one alone would be too high.

    Bootstrap samples choose a candidate each, which is evaluated on the images outside of the sample. Tsamardinos et
    al. 2018. The interval is that of the samples, and at least Wilson's: few images may all be classified correctly.
    """
    count = len(y)
    draw = generator(0, "expected accuracy")
    outside = []
    for _ in range(DRAWS):
        rows = torch.randint(count, (count,), generator=draw)
        left = torch.ones(count, dtype=torch.bool)
        left[rows] = False
        if bool(left.any()):
            chosen = right[:, rows].double().mean(1).argmax()
            outside.append(float(right[chosen, left].double().mean()))
    share = float(np.mean(outside))
    low, high = wilson(share, count)
    low, high = min(low, float(np.quantile(outside, 0.025))), max(high, float(np.quantile(outside, 0.975)))
    chance = float(y.bincount().max()) / count
    return ExpectedAccuracy(100 * share, 100 * low, 100 * high, 100 * chance, count, compared)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of so many images.

    >>> [round(limit, 3) for limit in wilson(0.9, 100)]
    [0.826, 0.945]
    """
    middle = share + Z**2 / (2 * count)
    half = Z * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    return max(0.0, (middle - half) / (1 + Z**2 / count)), min(1.0, (middle + half) / (1 + Z**2 / count))
