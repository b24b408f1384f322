"""What the encoder makes of a sample of images: a map, clusters, neighbors, and what a quick probe confuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.manifold import TSNE
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from effssl.features.extract import extract
from effssl.features.knn import nearest
from effssl.network.loaded import LoadedEncoder
from effssl.report.sample import Sample, sheet, tile_side
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import spinner
from effssl.runtime.randomness import generator

NEIGHBORS = 12
FEWEST = 12  # with fewer images t-SNE has nothing to arrange, and a probe nothing to learn from
REDUCED = 50  # dimensions that PCA leaves to t-SNE
ITERATIONS = 500
GALLERY = 6  # queries of each kind, right and wrong
MOST_CLUSTERS = 20


def embedding(encoder: LoadedEncoder, sample: Sample) -> dict[str, Any]:
    """Everything a page shows of the features of a sample."""
    images = sample.images
    h = extract(encoder, images, "report: features").h
    if not torch.isfinite(h).all():
        raise RequestError("the features are not finite")
    unit = F.normalize(h, dim=1)
    count, classes = len(h), len(images.classes) if images.labels is not None else 0
    clusters = min(classes or 10, MOST_CLUSTERS, max(1, count // 5))
    similarity, index = nearest(h, h, min(NEIGHBORS + 1, count))
    found = [_others(row, *pair) for row, pair in enumerate(zip(index.tolist(), similarity.tolist(), strict=True))]
    with spinner(f"report: a map of {count} images"):
        placed = positions(unit.numpy())
    means = KMeans(clusters, n_init=3, random_state=0).fit_predict(unit.numpy()) if clusters > 1 else np.zeros(count)
    labels = None if images.labels is None else images.labels.tolist()
    return {
        "sheet": sheet(images.pixels, tile_side(images.pixels, count)),
        "names": sample.names,
        "held": [int(held) for held in sample.held_out.tolist()],
        "labels": labels,
        "classes": images.classes if labels is not None else [],
        "clusters": [int(cluster) for cluster in means],
        "maps": placed,
        "neighbors": [[row for row, _ in one] for one in found],
        "similarity": [[value for _, value in one] for one in found],
        "gallery": gallery(found, labels, sample.held_out),
        "probe": probe(h, sample) if labels is not None else None,
    }


def _others(row: int, index: list[int], similarity: list[float]) -> list[tuple[int, int]]:
    """Neighbors other than the image itself, with their cosine in percent."""
    pairs = [(i, round(100 * s)) for i, s in zip(index, similarity, strict=True) if i != row]
    return pairs[:NEIGHBORS]


def positions(unit: np.ndarray) -> dict[str, list[list[float]]]:
    """Places on the map, each axis from 0 to 1: t-SNE of the first principal components, and the first two of them."""
    parts = PCA(min(REDUCED, *unit.shape), random_state=0).fit_transform(unit)
    flat = np.pad(parts[:, :2], ((0, 0), (0, max(0, 2 - parts.shape[1]))))
    maps = {"PCA": flat}
    if len(unit) >= FEWEST and parts[:, 0].std() > 1e-6:  # a collapsed encoder puts all images on one point
        perplexity = min(30.0, (len(unit) - 1) / 4)
        made = TSNE(2, perplexity=perplexity, init="pca", max_iter=ITERATIONS, random_state=0).fit_transform(parts)
        if np.isfinite(made).all():
            maps = {"t-SNE": made, **maps}
    return {name: _scaled(places) for name, places in maps.items()}


def _scaled(places: np.ndarray) -> list[list[float]]:
    low, span = places.min(0), np.maximum(np.ptp(places, 0), 1e-9)
    return [[round(float(x), 4), round(float(y), 4)] for x, y in (places - low) / span]


def gallery(found: list[list[tuple[int, int]]], labels: list[int] | None, held_out: Tensor) -> dict[str, list[int]]:
    """Queries whose nearest image has the same label, others where it has another; without labels, some images."""
    order = torch.randperm(len(found), generator=generator(0, "gallery")).tolist()
    queries = [row for row in order if found[row] and (labels is None or held_out[row])]
    if labels is None:
        return {"some": queries[: 2 * GALLERY]}
    right = [row for row in queries if labels[found[row][0][0]] == labels[row]]
    wrong = [row for row in queries if labels[found[row][0][0]] != labels[row]]
    return {"hits": right[:GALLERY], "misses": wrong[:GALLERY], "counts": [len(right), len(wrong)]}


def probe(h: Tensor, sample: Sample) -> dict[str, Any] | None:
    """A logistic regression from the sample's training images to its validation images: what it takes for what."""
    assert sample.images.labels is not None
    labels, held = sample.images.labels, sample.held_out
    fit, read = ~held, held
    if int(read.sum()) < 2 or len(labels[fit].unique()) < 2:
        return None
    scaler = StandardScaler().fit(h[fit].numpy())
    model = LogisticRegression(C=0.1, max_iter=200).fit(scaler.transform(h[fit].numpy()), labels[fit].numpy())
    told = torch.from_numpy(model.predict(scaler.transform(h[read].numpy())))
    truth = labels[read]
    return {
        "labels": sample.images.classes,
        "cells": cells(truth, told),
        "accuracy": 100 * float((told == truth).float().mean()),
        "how": f"logistic regression on {int(fit.sum())} training images, read on {int(read.sum())} validation images, "
        "all from this sample: a glance, not a score (effssl eval linear measures)",
    }


def cells(truth: Tensor, told: Tensor) -> list[list[int]]:
    """A confusion matrix as its filled cells: [true, told, how often]."""
    pairs, counts = torch.stack([truth, told], 1).unique(dim=0, return_counts=True)
    return [[*pair, n] for pair, n in zip(pairs.tolist(), counts.tolist(), strict=True)]
