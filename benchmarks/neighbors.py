"""The search behind kNN: 10,000 queries in 50,000 features of 512 dimensions, against scikit-learn and faiss."""

from __future__ import annotations

import resource
from statistics import median

import torch
import torch.nn.functional as F
from sklearn.neighbors import NearestNeighbors

from benchmarks.timing import interleaved
from effssl.features.knn import nearest

BANK, QUERIES, DIM, K = 50_000, 10_000, 512, 200


def clustered(count: int, seed: int) -> torch.Tensor:
    """Features in a hundred clouds, as those of images are."""
    g = torch.Generator().manual_seed(seed)
    centers = torch.randn(100, DIM, generator=torch.Generator().manual_seed(99))
    return F.normalize(centers[torch.randint(100, (count,), generator=g)] + torch.randn(count, DIM, generator=g), dim=1)


def measure(repeats: int) -> dict[str, dict[str, float]]:
    """Seconds for all queries (sklearn: a tenth of them, times ten), and the memory that ours takes beside inputs."""
    bank, queries = clustered(BANK, 0), clustered(QUERIES, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ours = nearest(queries, bank, K)[1]
    extra = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    few = queries[: QUERIES // 10].numpy()
    brute = NearestNeighbors(n_neighbors=K, algorithm="brute", metric="cosine").fit(bank.numpy())
    functions = {"effssl": lambda: nearest(queries, bank, K), "scikit-learn": lambda: brute.kneighbors(few)}
    try:
        import faiss
    except ImportError:
        print("faiss is not installed (pip install faiss-cpu): it is left out")
    else:
        faiss.omp_set_num_threads(torch.get_num_threads())
        index = faiss.IndexFlatIP(DIM)
        index.add(bank.numpy())
        functions["faiss flat"] = lambda: index.search(queries.numpy(), K)
        theirs = torch.from_numpy(index.search(few, K)[1])
        shared = [len(set(a) & set(b)) / K for a, b in zip(theirs.tolist(), ours[: len(few)].tolist(), strict=True)]
        assert min(shared) > 0.98, "ours finds other neighbors"
    times = interleaved(functions, repeats)
    seconds = {name: median(each) * (10 if name == "scikit-learn" else 1) for name, each in times.items()}
    base = seconds["effssl"]
    found = {name: {"seconds": s, "ratio": s / base} for name, s in seconds.items()}
    found["effssl"]["extra_gib"] = extra
    return found
