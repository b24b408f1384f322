"""Weighted k-nearest-neighbor accuracy. Wu et al. 2018."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.features.extract import Features
from effssl.runtime.progress import progress_bar

CHUNK = 1 << 26  # similarities held at a time: 256 MiB in float32
K, TEMPERATURE = 200, 0.1  # neighbors, and the temperature of their vote
LONG = 1 << 37  # multiplications from which on a search shows its progress


def nearest(
    query: Tensor, bank: Tensor, k: int, advance: Callable[[int], None] = lambda rows: None
) -> tuple[Tensor, Tensor]:
    """The k most similar rows of the bank by cosine: similarities and row numbers, Q×k; nothing larger is kept."""
    query, bank = F.normalize(query, dim=1), F.normalize(bank, dim=1)
    k = min(k, len(bank))
    parts = query.split(max(1, CHUNK // len(bank)))
    similarity = query.new_empty(len(parts[0]), len(bank))  # one for all parts: fresh memory costs a fifth of the time
    found = []
    for part in parts:
        found.append(largest(torch.mm(part, bank.T, out=similarity[: len(part)]), k))
        advance(len(part))
    return torch.cat([values for values, _ in found]), torch.cat([index for _, index in found])


def largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`x.topk(k)` for rows far longer than k: the same values, several times faster.

    Columns are divided into groups. The k largest values lie in the k groups with the largest maxima, because a value
    of another group has at least k maxima above it; so only those groups are searched.
    """
    columns = x.shape[1]
    size = int((columns / k) ** 0.5)  # balances the search among maxima with that inside the chosen groups
    if size < 2:
        return tuple(x.topk(k))  # type: ignore[return-value]
    groups = columns // size
    whole = x[:, : size * groups].unflatten(1, (size, groups))  # column c belongs to group c % groups
    chosen = whole.amax(1).topk(k).indices  # Q×k
    index = (chosen[:, None] + groups * torch.arange(size, device=x.device)[:, None]).flatten(1)  # Q×(size·k)
    rest = torch.arange(size * groups, columns, device=x.device).expand(len(x), -1)  # what no group holds
    index = torch.cat([index, rest], 1)
    top = x.gather(1, index).topk(k)
    return top.values, index.gather(1, top.indices)


def fitting_k(labels: Tensor) -> int:
    """The usual number of neighbors, or as many as a class has images on average: more are of other classes anyway.

    >>> fitting_k(torch.arange(1000) % 2), fitting_k(torch.arange(1000) % 50)
    (200, 20)
    """
    return max(1, min(K, len(labels) // max(1, len(labels.unique()))))


def knn_votes(similarity: Tensor, labels: Tensor, classes: int, temperature: float = TEMPERATURE) -> Tensor:
    """Votes per class, Q×classes, of neighbors Q×k, nearest first: exp(similarity / temperature), up to a factor."""
    weight = ((similarity - similarity[:, :1]) / temperature).exp()  # relative to the nearest: cannot overflow
    return similarity.new_zeros(len(similarity), classes).scatter_add_(1, labels, weight)


def knn_accuracy(
    train: Features, test: Features, k: int = 0, temperature: float = TEMPERATURE, text: str = ""
) -> float:
    """Percent of test images whose class wins the vote of their neighbors in train; a long search shows `text`.

    k is 0 for as many neighbors as fit the classes.
    """
    assert train.labels is not None
    assert test.labels is not None
    classes = int(max(train.labels.max(), test.labels.max())) + 1
    long = text and train.h.numel() * len(test.h) > LONG
    with progress_bar(text, len(test.h)) if long else nullcontext(lambda rows: None) as advance:
        similarity, index = nearest(test.h, train.h, k or fitting_k(train.labels), advance)
        votes = knn_votes(similarity, train.labels[index], classes, temperature)
    return 100 * (votes.argmax(1) == test.labels).float().mean().item()
