"""k-means where there are fewer distinct features than clusters."""

from __future__ import annotations

import warnings

import numpy as np

from effssl.features.kmeans import kmeans


def test_features_that_are_all_alike_are_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = kmeans(np.ones((20, 3)), 4, restarts=2, seed=0)
    assert (found.cluster_centers_[found.labels_] == 1).all()


def test_clusters_that_are_apart_are_found() -> None:
    features = np.repeat(np.eye(3), 5, axis=0)
    labels = kmeans(features, 3, restarts=3, seed=0).labels_.reshape(3, 5)
    assert (labels == labels[:, :1]).all()
    assert len(np.unique(labels)) == 3
