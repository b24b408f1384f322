"""A diverse subset of images: greedy k-center."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from effssl.explore.embedding import FeaturesLike, load_embedding
from effssl.explore.encoder import EncoderLike, FeatureOptions
from effssl.explore.similarity import blocks, normalized
from effssl.features.knn import nearest
from effssl.runtime.device import pick_device
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import progress_bar
from effssl.runtime.randomness import generator

if TYPE_CHECKING:
    from typing_extensions import Unpack

CANDIDATES = 1024  # images whose distances are updated at a time


@dataclass(frozen=True)
class Subset:
    """Images that are as different as possible, in the order in which they were chosen."""

    names: list[str]
    rows: list[int]
    labels: list[str | None]
    distances: list[float]  # of each to those chosen before it; 0 for the first
    radius: float  # the largest distance of any image to its nearest chosen one


def subset(
    run: EncoderLike | None = None,
    data: str | Path | None = None,
    size: int = 0,
    *,
    features: FeaturesLike | None = None,
    seed: int = 0,
    **options: Unpack[FeatureOptions],
) -> Subset:
    """A diverse subset: starting from a random image, always the image farthest from all chosen ones (k-center)."""
    if size < 1:
        raise RequestError(f"size is {size}; it must be at least 1: the number of images to choose")
    embedding = load_embedding(run, data, features, options)
    if size > len(embedding):
        raise RequestError(f"size is {size}, but there are only {len(embedding)} images")
    device = pick_device(options.get("device", "auto"))
    rows, distances, radius = farthest_first(embedding.features, size, seed, device)
    labels = [embedding.label(row) for row in rows]
    return Subset([embedding.names[row] for row in rows], rows, labels, distances, radius)


def farthest_first(
    features: np.ndarray, size: int, seed: int, device: torch.device
) -> tuple[list[int], list[float], float]:
    """Greedy k-center: chosen rows, the distance of each to those before it, and the largest distance of any image.

    Distances only shrink as more images are chosen, so an old distance is an upper bound: only the images with the
    largest bounds are compared with the centers chosen since, and the choice is the same as if all were.
    """
    chosen = [int(torch.randint(len(features), (1,), generator=generator(seed, "diverse subset")))]
    distances = [0.0]
    centers = torch.empty(size, features.shape[1], device=device)
    centers[0] = normalized(features[chosen[0]][None], device)[0]
    bound = np.empty(len(features), np.float32)
    for start, block in blocks(features, device):
        bound[start : start + len(block)] = (1 - block @ centers[0]).cpu().numpy()
    bound[chosen[0]] = -np.inf
    compared = np.ones(len(features), np.int64)  # number of centers that the bound of each image accounts for
    with progress_bar("choosing", size) as advance:
        advance(1)
        while len(chosen) < size:
            row = int(bound.argmax())
            if compared[row] < len(chosen):
                rows = _outdated(bound, compared, len(chosen))
                recent = centers[compared[rows].min() : len(chosen)]
                distance = (1 - (normalized(features[rows], device) @ recent.T).amax(1)).cpu().numpy()
                bound[rows] = np.minimum(bound[rows], distance)
                compared[rows] = len(chosen)
                continue
            centers[len(chosen)] = normalized(features[row][None], device)[0]
            distances.append(max(0.0, float(bound[row])))
            chosen.append(row)
            bound[row] = -np.inf
            advance(1)
    radius = max(float(1 - nearest(block, centers, 1)[0].min()) for _, block in blocks(features, device))
    return chosen, distances, max(0.0, radius)


def _outdated(bound: np.ndarray, compared: np.ndarray, count: int) -> np.ndarray:
    """Images with the largest bounds that do not account for all `count` centers; the first maximum is among them."""
    few = min(CANDIDATES, len(bound))
    rows = np.sort(np.argpartition(-bound, few - 1)[:few])
    # Of many images with equal bounds, these may all be up to date, and the first maximum not among them.
    return np.union1d(rows[compared[rows] < count], [int(bound.argmax())])
