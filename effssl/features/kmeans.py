"""k-means of scikit-learn, which warns where there are fewer distinct features than clusters: no news to a user."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning


def kmeans(features: np.ndarray, count: int, restarts: int, seed: int) -> KMeans:
    """`count` clusters of features N×D, the best of some initializations.

    >>> kmeans(np.zeros((5, 2)), 2, 1, 0).labels_.tolist()
    [0, 0, 0, 0, 0]
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return KMeans(count, n_init=restarts, random_state=seed).fit(features)
