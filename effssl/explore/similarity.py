"""Comparing all images with all, block by block: features stay on the disk, similarities never fill the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from effssl.features.knn import nearest
from effssl.runtime.errors import RequestError
from effssl.runtime.randomness import generator

BLOCK = 1 << 23  # numbers of features held at a time: 32 MiB
QUERIES = 2048  # images that are compared with all others at a time
PAIRS = 1 << 23  # similarities among which similar pairs are listed at a time


def unit(features: np.ndarray, device: torch.device) -> Tensor:
    """Some features as vectors of length 1."""
    x = torch.from_numpy(np.array(features, np.float32)).to(device)
    length = x.norm(dim=1, keepdim=True)
    if not bool(length.isfinite().all()):
        raise RequestError("some features are not finite numbers; make them again with another encoder")
    return x.div_(length.clamp_(min=1e-12))


def blocks(features: np.ndarray, device: torch.device, rows: int = 0) -> Iterator[tuple[int, Tensor]]:
    """All features of length 1, a block at a time, with the number of its first row."""
    rows = rows or max(1, BLOCK // features.shape[1])
    for start in range(0, len(features), rows):
        yield start, unit(features[start : start + rows], device)


def nearest_among(query: Tensor, features: np.ndarray, k: int) -> tuple[Tensor, Tensor]:
    """The k most similar of all images to each query: similarities and row numbers, Q×k, the most similar first."""
    values, index = query.new_empty(len(query), 0), torch.empty(len(query), 0, dtype=torch.long, device=query.device)
    for start, block in blocks(features, query.device):
        more, rows = nearest(query, block, k)
        values, index = torch.cat([values, more], 1), torch.cat([index, rows + start], 1)
        values, order = values.sort(dim=1, descending=True, stable=True)  # of equals the first
        values, index = values[:, :k], index.gather(1, order[:, :k])
    return values.clamp(max=1), index  # rounding makes some a little more than 1


def nearest_others(features: np.ndarray, k: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """For every image, a block at a time, the k most similar other ones: similarities and row numbers."""
    k = min(k, len(features) - 1)
    for start, block in blocks(features, device, QUERIES):
        values, index = nearest_among(block, features, k + 1)
        own = index == torch.arange(start, start + len(block), device=device)[:, None]
        own[~own.any(1), -1] = True  # so many others are exactly as similar that it is not among them itself
        yield values[~own].view(-1, k), index[~own].view(-1, k)


def typical_similarity(features: np.ndarray, device: torch.device) -> float:
    """How similar an image's nearest other one is: the median over the images, or over some of very many."""
    rows = torch.randperm(len(features), generator=generator(0, "typical similarity"))[:QUERIES].sort().values
    values, index = nearest_among(unit(features[rows.numpy()], device), features, 2)
    first_is_itself = index[:, 0] == rows.to(device)
    return float(torch.where(first_is_itself, values[:, 1], values[:, 0]).median())


def pairs_above(
    features: np.ndarray, threshold: float, device: torch.device, advance: Callable[[int], None]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of images that are at least so similar, some at a time: their first and their second row numbers."""
    for start, block in blocks(features, device, QUERIES):
        for offset, others in blocks(features[start:], device):
            rows = max(1, PAIRS // len(others))
            for i, few in enumerate(block.split(rows)):
                first, second = (few @ others.T >= threshold).nonzero(as_tuple=True)
                a, b = first + start + i * rows, second + start + offset
                yield a[a < b].cpu().numpy(), b[a < b].cpu().numpy()
        advance(len(block))
