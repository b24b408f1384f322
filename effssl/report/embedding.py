"""Features of a sample of images: a map, clusters, nearest neighbors, and the confusion matrix of a linear probe."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.manifold import TSNE
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from effssl.features.extract import extract
from effssl.features.kmeans import kmeans
from effssl.features.knn import nearest
from effssl.features.logistic import fit_quietly
from effssl.features.whitening import pixel_encoder
from effssl.network.loaded import LoadedEncoder
from effssl.report.sample import Sample, rgb_of, sheet, tile_side
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import spinner
from effssl.runtime.randomness import generator

NEIGHBORS = 12
FEWEST = 12  # images that t-SNE and probes need
REDUCED = 50  # principal components that t-SNE starts from
ITERATIONS = 500
GALLERY = 6  # queries of each kind, hits and misses
EXAMPLES, SHOWN = 6, 5  # images beside the verdict, and neighbors of each
MOST_CLUSTERS = 20


def embed_sample(encoder: LoadedEncoder, sample: Sample) -> dict[str, Any]:
    """All values of the map, the neighbors and the probe of a page."""
    images = sample.images
    h = extract(encoder, images, "report: features").h
    if not torch.isfinite(h).all():
        raise RequestError("the features are not finite; the run has diverged")
    unit = F.normalize(h, dim=1)
    count, classes = len(h), len(images.classes) if images.labels is not None else 0
    clusters = min(classes or 10, MOST_CLUSTERS, max(1, count // 5))
    similarity, index = nearest(h, h, min(NEIGHBORS + 1, count))
    found = [_others(row, *pair) for row, pair in enumerate(zip(index.tolist(), similarity.tolist(), strict=True))]
    with spinner(f"report: mapping {count} images"):
        maps = positions(unit.numpy())
    cluster = kmeans(unit.numpy(), clusters, 3, 0).labels_ if clusters > 1 else np.zeros(count)
    labels = None if images.labels is None else images.labels.tolist()
    return {
        "sheet": sheet(rgb_of(images, encoder), tile_side(images.pixels, count)),
        "names": sample.names,
        "held": [int(held) for held in sample.held_out.tolist()],
        "labels": labels,
        "classes": images.classes if labels is not None else [],
        "clusters": [int(number) for number in cluster],
        "maps": maps,
        "neighbors": [[row for row, _ in one] for one in found],
        "similarity": [[value for _, value in one] for one in found],
        "gallery": gallery(found, labels, sample.held_out),
        "examples": examples(found, sample, encoder),
        "probe": probe(h, sample) if labels is not None else None,
    }


def _others(row: int, index: list[int], similarity: list[float]) -> list[tuple[int, int]]:
    """Neighbors other than the image itself, with their cosine similarity in percent."""
    pairs = [(i, round(100 * s)) for i, s in zip(index, similarity, strict=True) if i != row]
    return pairs[:NEIGHBORS]


def positions(unit: np.ndarray) -> dict[str, list[list[float]]]:
    """Positions on the maps, each axis from 0 to 1: t-SNE of the principal components, and the first two of them."""
    parts = PCA(min(REDUCED, *unit.shape), random_state=0).fit_transform(unit)
    flat = np.pad(parts[:, :2], ((0, 0), (0, max(0, 2 - parts.shape[1]))))
    maps = {"PCA": flat}
    if len(unit) >= FEWEST and parts[:, 0].std() > 1e-6:  # a collapsed encoder maps all images to one point
        perplexity = min(30.0, (len(unit) - 1) / 4)
        embedded = TSNE(2, perplexity=perplexity, init="pca", max_iter=ITERATIONS, random_state=0).fit_transform(parts)
        if np.isfinite(embedded).all():
            maps = {"t-SNE": embedded, **maps}
    return {name: _scaled(points) for name, points in maps.items()}


def _scaled(points: np.ndarray) -> list[list[float]]:
    low, span = points.min(0), np.maximum(np.ptp(points, 0), 1e-9)
    return [[round(float(x), 4), round(float(y), 4)] for x, y in (points - low) / span]


def gallery(found: list[list[tuple[int, int]]], labels: list[int] | None, held_out: Tensor) -> dict[str, list[int]]:
    """Queries whose nearest neighbor has the same label (hits) or another (misses); without labels, some images."""
    order = torch.randperm(len(found), generator=generator(0, "gallery")).tolist()
    queries = [row for row in order if found[row] and (labels is None or held_out[row])]
    if labels is None:
        return {"some": queries[: 2 * GALLERY]}
    right = [row for row in queries if labels[found[row][0][0]] == labels[row]]
    wrong = [row for row in queries if labels[found[row][0][0]] != labels[row]]
    return {"hits": right[:GALLERY], "misses": wrong[:GALLERY], "counts": [len(right), len(wrong)]}


def examples(found: list[list[tuple[int, int]]], sample: Sample, encoder: LoadedEncoder) -> list[dict[str, Any]]:
    """Some images with their neighbors by the features of the run, and by raw pixels."""
    order = torch.randperm(len(found), generator=generator(0, "examples")).tolist()
    queries = [row for row in order if found[row]][:EXAMPLES]
    x = extract(pixel_encoder(encoder), sample.images, "report: pixels").h
    by_pixels = nearest(x[queries], x, min(SHOWN + 1, len(x)))[1].tolist() if queries else []
    return [
        {"query": row, "run": [i for i, _ in found[row]][:SHOWN], "pixels": [i for i in others if i != row][:SHOWN]}
        for row, others in zip(queries, by_pixels, strict=True)
    ]


def probe(h: Tensor, sample: Sample) -> dict[str, Any] | None:
    """The confusion matrix of a logistic regression: fitted on the sample's training images, tested on the others."""
    assert sample.images.labels is not None
    labels, test = sample.images.labels, sample.held_out
    train = ~test
    if int(test.sum()) < 2 or len(labels[train].unique()) < 2:
        return None
    scaler = StandardScaler().fit(h[train].numpy())
    unfitted = LogisticRegression(C=0.1, max_iter=200)
    model = fit_quietly(unfitted, scaler.transform(h[train].numpy()), labels[train].numpy())
    predicted = torch.from_numpy(model.predict(scaler.transform(h[test].numpy())))
    how = (
        f"logistic regression fitted on {int(train.sum())} training images of the sample, tested on {int(test.sum())} "
        "validation images; for a proper score use effssl eval linear"
    )
    return confusion(sample.images.classes, labels[test], predicted, how)


def confusion(labels: list[str], truth: Tensor, predicted: Tensor, how: str) -> dict[str, Any]:
    """A confusion matrix with its accuracy, and how it was measured."""
    accuracy = 100 * float((truth == predicted).float().mean())
    return {"labels": labels, "cells": cells(truth, predicted), "accuracy": accuracy, "how": how}


def cells(truth: Tensor, predicted: Tensor) -> list[list[int]]:
    """The non-zero cells of a confusion matrix: [true, predicted, count]."""
    pairs, counts = torch.stack([truth, predicted], 1).unique(dim=0, return_counts=True)
    return [[*pair, n] for pair, n in zip(pairs.tolist(), counts.tolist(), strict=True)]
