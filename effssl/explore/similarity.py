"""Cosine similarities of many images, block by block: features stay on the disk, similarities never fill the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from effssl.features.knn import nearest
from effssl.runtime.errors import RequestError
from effssl.runtime.randomness import generator

BLOCK = 1 << 23  # values of features held at a time: 32 MiB
QUERIES = 2048  # images that are compared with all others at a time
PAIRS = 1 << 23  # similarities that are searched for pairs at a time


def normalized(features: np.ndarray, device: torch.device) -> Tensor:
    """L2-normalized features."""
    x = torch.from_numpy(np.array(features, np.float32)).to(device)
    norm = x.norm(dim=1, keepdim=True)
    if not bool(norm.isfinite().all()):
        raise RequestError("some features are not finite; compute them again with another encoder")
    return x.div_(norm.clamp_(min=1e-12))


def blocks(features: np.ndarray, device: torch.device, rows: int = 0) -> Iterator[tuple[int, Tensor]]:
    """All features, L2-normalized, a block at a time, with the index of its first row."""
    rows = rows or max(1, BLOCK // features.shape[1])
    for start in range(0, len(features), rows):
        yield start, normalized(features[start : start + rows], device)


def nearest_in_blocks(query: Tensor, features: np.ndarray, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest neighbors of each query among all features: similarities and row numbers, Q×k, in falling order."""
    values = query.new_empty(len(query), 0)
    index = torch.empty(len(query), 0, dtype=torch.long, device=query.device)
    for start, block in blocks(features, query.device):
        similarities, rows = nearest(query, block, k)
        values = torch.cat([values, similarities], 1)
        index = torch.cat([index, rows + start], 1)
        values, order = values.sort(dim=1, descending=True, stable=True)  # of equal ones the first
        values, index = values[:, :k], index.gather(1, order[:, :k])
    return values.clamp(max=1), index  # rounding may exceed 1


def nearest_others(features: np.ndarray, k: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """The k nearest neighbors of every image except itself, a block of images at a time: similarities, row numbers."""
    k = min(k, len(features) - 1)
    for start, block in blocks(features, device, QUERIES):
        values, index = nearest_in_blocks(block, features, k + 1)
        itself = index == torch.arange(start, start + len(block), device=device)[:, None]
        itself[~itself.any(1), -1] = True  # where too many others are exactly as similar, it is not among them
        yield values[~itself].view(-1, k), index[~itself].view(-1, k)


def typical_similarity(features: np.ndarray, device: torch.device) -> float:
    """Median similarity of an image to its nearest neighbor, estimated from a random sample of very many images."""
    rows = torch.randperm(len(features), generator=generator(0, "typical similarity"))[:QUERIES].sort().values
    values, index = nearest_in_blocks(normalized(features[rows.numpy()], device), features, 2)
    first_is_itself = index[:, 0] == rows.to(device)
    return float(torch.where(first_is_itself, values[:, 1], values[:, 0]).median())


def pairs_above(
    features: np.ndarray, threshold: float, device: torch.device, advance: Callable[[int], None]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of images with at least this similarity, in parts: their first and their second row numbers."""
    for start, block in blocks(features, device, QUERIES):
        for offset, others in blocks(features[start:], device):
            rows = max(1, PAIRS // len(others))
            for i, part in enumerate(block.split(rows)):
                first, second = (part @ others.T >= threshold).nonzero(as_tuple=True)
                a, b = first + start + i * rows, second + start + offset
                yield a[a < b].cpu().numpy(), b[a < b].cpu().numpy()
        advance(len(block))
