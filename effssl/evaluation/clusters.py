"""Do groups of similar images coincide with classes?"""

from __future__ import annotations

import torch.nn.functional as F
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from effssl.data import Data
from effssl.evaluation.options import Clusters
from effssl.evaluation.score import Score
from effssl.features.extract import extract, labelled
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import spinner


def evaluate_clusters(encoder: LoadedEncoder, data: Data, options: Clusters) -> Score:
    """k-means on L2-normalized features of the test images: NMI (primary) and ARI against their classes."""
    _, images = labelled(data, "clusters")
    assert images.labels is not None
    count = options.clusters or len(images.labels.unique())
    if not 2 <= count <= len(images):
        raise RequestError(f"{count} clusters of {len(images)} images make no sense; choose --clusters")
    test = extract(encoder, images, "test features")
    assert test.labels is not None
    if count > len(test.h):
        raise RequestError(f"{count} clusters of {len(test.h)} images that can be read make no sense")
    with spinner(f"k-means, {count} clusters, {options.restarts} starts"):
        means = KMeans(count, n_init=options.restarts, random_state=options.seed)
        found = means.fit_predict(F.normalize(test.h, dim=1).numpy())
    truth = test.labels.numpy()
    constants = {"clusters": count, "restarts": options.restarts, "seed": options.seed, "features": "h, L2-normalized"}
    also = {"ARI": 100 * float(adjusted_rand_score(truth, found))}
    score = Score("clusters", 100 * float(normalized_mutual_info_score(truth, found)), "NMI", constants, also)
    return score.on(data, test=(images, test.rows))
