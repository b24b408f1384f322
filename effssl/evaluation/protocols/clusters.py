"""k-means clusters of the test images' features against their classes: NMI and ARI."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from effssl.data import Data
from effssl.evaluation.protocol import EvaluationProtocol
from effssl.evaluation.score import Score
from effssl.features.extract import extract, labelled
from effssl.features.kmeans import kmeans
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import spinner
from effssl.schema import Count, Positive, Seed


@dataclass(frozen=True)
class ClustersOptions:
    """Options of k-means."""

    clusters: Count = 0
    """number of clusters; 0 is the number of classes"""
    restarts: Positive = 10
    """random initializations, of which the best one counts"""
    seed: Seed = 0


def evaluate_clusters(encoder: LoadedEncoder, data: Data, options: ClustersOptions) -> Score:
    """k-means on L2-normalized features of the test images: NMI (primary) and ARI against their classes."""
    _, images = labelled(data, "clusters")
    assert images.labels is not None
    count = options.clusters or len(images.labels.unique())
    if not 2 <= count <= len(images):
        raise RequestError(f"clusters is {count}; it must be between 2 and the number of test images, {len(images)}")
    test = extract(encoder, images, "test features")
    assert test.labels is not None
    if count > len(test.h):
        raise RequestError(f"clusters is {count}, but only {len(test.h)} test images can be read; choose fewer")
    with spinner(f"k-means, {count} clusters, {options.restarts} initializations"):
        found = kmeans(F.normalize(test.h, dim=1).numpy(), count, options.restarts, options.seed).labels_
    truth = test.labels.numpy()
    constants = {"clusters": count, "restarts": options.restarts, "seed": options.seed, "features": "h, L2-normalized"}
    also = {"ARI": 100 * float(adjusted_rand_score(truth, found))}
    score = Score("clusters", 100 * float(normalized_mutual_info_score(truth, found)), "NMI", constants, also)
    return score.on(data, test=(images, test.rows))


PROTOCOL = EvaluationProtocol("clusters", ClustersOptions, evaluate_clusters)
