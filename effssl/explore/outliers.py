"""Outliers among images: those that are far from even their nearest neighbors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from effssl.explore.embedding import FeaturesLike, load_embedding
from effssl.explore.encoder import EncoderLike, FeatureOptions
from effssl.explore.similarity import nearest_others
from effssl.runtime.device import pick_device
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import progress_bar

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Outlier:
    """An image, its mean cosine distance to its nearest neighbors, and the nearest one."""

    name: str
    distance: float
    nearest: str
    label: str | None


def outliers(
    run: EncoderLike | None = None,
    data: str | Path | None = None,
    *,
    features: FeaturesLike | None = None,
    k: int = 10,
    top: int = 20,
    **options: Unpack[FeatureOptions],
) -> list[Outlier]:
    """The images with the largest mean distance (1 − cosine) to their k nearest neighbors."""
    for name, value in (("k", k), ("top", top)):
        if value < 1:
            raise RequestError(f"{name} is {value}; it must be at least 1")
    embedding = load_embedding(run, data, features, options)
    if len(embedding) < 2:
        raise RequestError("a single image has no neighbors; outliers need at least two")
    distances, neighbors = [], []
    with progress_bar("comparing", len(embedding)) as advance:
        for values, index in nearest_others(embedding.features, k, pick_device(options.get("device", "auto"))):
            distances.append((1 - values).mean(1).cpu())
            neighbors.append(index[:, 0].cpu())
            advance(len(values))
    distance, neighbor = torch.cat(distances), torch.cat(neighbors)
    rows = distance.sort(descending=True, stable=True).indices[:top].tolist()
    return [
        Outlier(embedding.names[row], float(distance[row]), embedding.names[int(neighbor[row])], embedding.label(row))
        for row in rows
    ]
