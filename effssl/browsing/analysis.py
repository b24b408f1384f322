"""What a page shows of features: maps, clusters, neighbors, and groups of duplicates, outliers and a subset."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from effssl.browsing.views import Section, View, ViewOptions
from effssl.explore.duplicates import Copy, duplicates
from effssl.explore.feature_files import Embedding
from effssl.explore.similarity import blocks, nearest_others, normalized
from effssl.explore.subset import farthest_first
from effssl.features.kmeans import kmeans
from effssl.features.knn import nearest
from effssl.report.embedding import positions
from effssl.runtime.progress import progress_bar, spinner
from effssl.runtime.randomness import generator

NEIGHBORS, MANY, FEWER = 24, 5000, 12  # neighbors of each image; of more than so many images, fewer
OUTLIER_NEIGHBORS = 10  # whose mean distance counts, as in effssl outliers
MAPPED = 3000  # images that t-SNE and k-means see; the others are placed among these
ANCHORS = 3  # mapped images between which another one is placed
MOST_CLUSTERS = 40
UNWHITENED = "These similarities are of features before whitening; all other views show those of whitened ones."


@dataclass(frozen=True)
class Analysis:
    """What is computed from the features of N images."""

    maps: dict[str, np.ndarray]  # by name positions from 0 to 1, N×2
    mapped: int  # images that the maps were computed from
    cluster: np.ndarray  # of each image, the largest cluster first
    order: np.ndarray  # rows by cluster, the most typical first
    index: Tensor  # neighbors, N×k
    similarity: Tensor  # theirs, N×k
    views: list[View]

    @property
    def typical(self) -> float:
        """The median similarity of an image to its nearest neighbor."""
        return float(self.similarity[:, 0].median()) if self.similarity.shape[1] else 0.0


def analyze(embedding: Embedding, plain: Embedding, options: ViewOptions, device: torch.device) -> Analysis:
    """All that is computed from features; `plain` are those by which duplicates are judged."""
    features = embedding.features
    index, similarity = _neighbors(features, device)
    some = torch.randperm(len(features), generator=generator(0, "map"))[:MAPPED].sort().values.numpy()
    unit = normalized(features[some], device)
    with spinner(f"mapping {len(some)} images"):
        maps = _maps(features, some, unit)
        cluster, order = _clusters(features, unit)
    views = [
        _duplicates(plain, options.threshold, device, whitened=plain is not embedding),
        _outliers(index, similarity, options.top),
        _subset(features, min(options.size, len(features)), device),
    ]
    return Analysis(maps, len(some), cluster, order, index, similarity, views)


def _neighbors(features: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """The nearest neighbors of every image and their similarities, N×k."""
    k = min(NEIGHBORS if len(features) <= MANY else FEWER, len(features) - 1)
    if k < 1:
        return torch.empty(len(features), 0, dtype=torch.long), torch.empty(len(features), 0)
    found = []
    with progress_bar("comparing", len(features)) as advance:
        for values, index in nearest_others(features, k, device):
            found.append((index.cpu(), values.cpu()))
            advance(len(values))
    return torch.cat([index for index, _ in found]), torch.cat([values for _, values in found])


def _maps(features: np.ndarray, some: np.ndarray, unit: Tensor) -> dict[str, np.ndarray]:
    """Positions on each map: computed for some images; each other image lies between the most similar of these."""
    if len(features) == 1:
        return {"PCA": np.full((1, 2), 0.5, np.float32)}
    with np.errstate(invalid="ignore"):  # images that are all the same have no variance
        computed = {name: np.array(points, np.float32) for name, points in positions(unit.cpu().numpy()).items()}
    if len(some) == len(features):
        return computed
    maps = {name: np.empty((len(features), 2), np.float32) for name in computed}
    for start, block in blocks(features, unit.device):
        values, anchors = nearest(block, unit, ANCHORS)
        weights = torch.softmax(20 * values, 1)[..., None].cpu().numpy()
        for name, points in computed.items():
            maps[name][start : start + len(block)] = (points[anchors.cpu().numpy()] * weights).sum(1)
    for name, points in computed.items():
        maps[name][some] = points
    return maps


def _clusters(features: np.ndarray, unit: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The cluster of each image by k-means, and all rows by cluster, those nearest to its center first."""
    wanted = min(MOST_CLUSTERS, max(1, round((len(features) / 10) ** 0.5)))
    count = min(wanted, len(torch.unique(unit, dim=0)))  # a collapsed encoder may have fewer features than clusters
    found = kmeans(unit.cpu().numpy(), count, 3, 0)
    centers = torch.from_numpy(found.cluster_centers_).to(unit)
    parts = [torch.cdist(block, centers).min(1) for _, block in blocks(features, unit.device)]
    distance = torch.cat([part.values for part in parts]).cpu().numpy()
    number = torch.cat([part.indices for part in parts]).cpu().numpy()
    rank = np.argsort(np.argsort(-np.bincount(number, minlength=count), kind="stable"), kind="stable")
    cluster = rank[number]
    return cluster, np.lexsort((distance, cluster))


def _duplicates(plain: Embedding, threshold: float, device: torch.device, whitened: bool) -> View:
    rows = {name: row for row, name in enumerate(plain.names)}
    sections = []
    for number, group in enumerate(duplicates(features=plain, threshold=threshold, device=str(device)), 1):
        copies = [group.keep, *group.others]
        first = "" if group.missing else "keep"
        captions = [
            size_text(group.keep),
            *(f"{copy.similarity:.3f} · {size_text(copy)}".strip(" ·") for copy in group.others),
        ]
        sections.append(Section(f"Group {number}", [rows[copy.name] for copy in copies], captions, first))
    if not sections:
        return View("duplicates", "Duplicates", f"No two images have a similarity of {threshold:g} or more.", sections)
    hint = (
        f"Groups of images connected by similarities of at least {threshold:g}: candidates to check. The first of a "
        "group is the largest, which is the one to keep."
    )
    hint += f" {UNWHITENED}" if whitened else ""
    return View("duplicates", "Duplicates", hint, sections)


def size_text(copy: Copy) -> str:
    """Width and height of an image, where they are known."""
    return f"{copy.width}×{copy.height}" if copy.width else ""


def _outliers(index: Tensor, similarity: Tensor, top: int) -> View:
    distance = (1 - similarity[:, :OUTLIER_NEIGHBORS]).mean(1)
    rows = distance.sort(descending=True, stable=True).indices[:top].tolist() if index.shape[1] else []
    captions = [f"distance {float(distance[row]):.3f}" for row in rows]
    hint = (
        f"Images with the largest mean distance (1 − cosine) to their {OUTLIER_NEIGHBORS} nearest neighbors, the "
        "farthest first."
    )
    return View("outliers", "Outliers", hint, [Section("", rows, captions)])


def _subset(features: np.ndarray, size: int, device: torch.device) -> View:
    rows, distances, radius = farthest_first(features, size, 0, device)
    captions = [f"no. {i}" + (f", distance {d:.3f}" if i > 1 else "") for i, d in enumerate(distances, 1)]
    hint = (
        f"{size} different images, for an overview (k-center), in the order in which they were chosen. No image is "
        f"farther than {radius:.3f} from one of them. To train a classifier, label random images first: these are odd."
    )
    return View("subset", "Subset", hint, [Section("", rows, captions)])
