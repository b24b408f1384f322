"""What features tell about a set of images: near-duplicates, odd ones, a diverse few. Nothing is moved or deleted."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from effssl.data.folder import displayed_size
from effssl.explore.embedding import Encoder, Source, features_of
from effssl.explore.feature_files import Embedding
from effssl.explore.gallery import Encoding
from effssl.explore.similarity import BLOCK, blocks, nearest_others, pairs_above, typical_similarity, unit
from effssl.features.knn import nearest
from effssl.runtime.device import pick_device
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import counter, say
from effssl.runtime.randomness import generator

if TYPE_CHECKING:
    from typing_extensions import Unpack

ROUNDING = 1e-6  # by so much two features of the same pixels may differ from similarity 1
MANY, MANY_OF_ALL = 20, 0.1  # a group larger than both hardly consists of duplicates
LOOKED_AT = 1024  # candidates of a subset whose distances are brought up to date at a time


@dataclass(frozen=True)
class Copy:
    """One of several that may be near-duplicates; similarity to the one to keep, and its size where it has a file."""

    name: str
    similarity: float
    width: int | None
    height: int | None
    bytes: int | None


@dataclass(frozen=True)
class Duplicates:
    """Images that hang together: the largest one, which to keep, and the others.

    Where files are not found, which is the largest is not known: `keep` is then no advice.
    """

    keep: Copy
    others: list[Copy]
    missing: list[str] = field(default_factory=list)  # files that are not found


@dataclass(frozen=True)
class Outlier:
    """An odd image: mean cosine distance to the nearest others, and which one is nearest."""

    name: str
    distance: float
    nearest: str
    label: str | None


@dataclass(frozen=True)
class Subset:
    """Images as different as possible, in the order they were chosen."""

    names: list[str]
    rows: list[int]
    labels: list[str | None]
    distances: list[float]  # of each to those chosen before it; the first has none, 0
    radius: float  # the largest distance of any image to its nearest chosen one


class _Groups:
    """Which images hang together, directly or by way of others (union-find, many pairs at a time)."""

    def __init__(self, count: int) -> None:
        self.parent = np.arange(count)

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The group of each row, named by its first image."""
        while not np.array_equal(up := self.parent[rows], rows):
            rows = up
        return rows

    def join(self, a: np.ndarray, b: np.ndarray) -> None:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        a, b = self.of(a), self.of(b)
        a, b = a[a != b], b[a != b]
        if not len(a):
            return
        roots, place = np.unique(np.concatenate([a, b]), return_inverse=True)
        graph = coo_array((np.ones(len(a), bool), (place[: len(a)], place[len(a) :])), (len(roots), len(roots)))
        part = connected_components(graph, directed=False)[1]
        first = np.full(part.max() + 1, len(self.parent))
        np.minimum.at(first, part, roots)
        self.parent[roots] = first[part]


def duplicates(
    run: Encoder | None = None,
    data: str | Path | None = None,
    *,
    features: Source | None = None,
    threshold: float = 0.97,
    **how: Unpack[Encoding],
) -> list[Duplicates]:
    """Candidates: groups of images connected by similarities of at least the threshold, the most alike first.

    Also said is how similar an image's nearest other one usually is: a threshold near that finds more than duplicates.
    """
    if not 0 < threshold <= 1:
        raise RequestError(f"threshold is {threshold}; it must be above 0 and at most 1")
    embedding = features_of(run, data, features, how)
    device = pick_device(how.get("device", "auto"))
    groups = _Groups(len(embedding))
    with counter("comparing", len(embedding)) as advance:
        for a, b in pairs_above(embedding.features, threshold - ROUNDING, device, advance):
            groups.join(a, b)
    group = groups.of(np.arange(len(embedding)))
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    members = [rows for rows in np.split(order, starts[1:]) if len(rows) > 1]
    largest = max(map(len, members), default=0)
    if largest > max(MANY, len(embedding) * MANY_OF_ALL):
        say(
            f"{largest} of {len(embedding)} images hang together: at {threshold} this encoder tells few apart; try more"
        )
    if len(embedding) > 1:
        _say_what_is_usual(typical_similarity(embedding.features, device), threshold)
    found = [_with_largest_first(rows, embedding, device) for rows in members]
    if missing := [name for group in found for name in group.missing]:
        say(f"which to keep is not known where files are not found ({len(missing)}), e.g. {missing[0]}")
    return sorted(found, key=lambda group: -group.others[0].similarity)


def _say_what_is_usual(similarity: float, threshold: float) -> None:
    """To an encoder that has learned little, all images are alike: then what is found are no duplicates."""
    say(f"the nearest other image has a similarity of {similarity:.4f} (median)")
    if threshold - similarity < 1 - threshold:
        say(
            f"a threshold of {threshold} is near that or below it, so many candidates may only look alike to this "
            f"encoder; raise --threshold, to {1 - (1 - similarity) / 4:.4g} for example, or train longer"
        )


def _with_largest_first(rows: np.ndarray, embedding: Embedding, device: torch.device) -> Duplicates:
    numbered = bool(embedding.about and embedding.about.numbered)
    sizes = [None if numbered else _size(Path(embedding.names[row])) for row in rows]

    def largeness(i: int) -> tuple[int, int]:
        size = sizes[i]
        return (size[0] * size[1], size[2]) if size else (0, 0)

    kept = max(range(len(rows)), key=lambda i: (*largeness(i), -i))
    center, some = unit(embedding.features[rows[kept]][None], device), max(1, BLOCK // embedding.features.shape[1])
    similar = torch.cat(
        [unit(embedding.features[rows[i : i + some]], device) @ center[0] for i in range(0, len(rows), some)]
    ).clamp(max=1)
    copies = [
        Copy(embedding.names[row], s, *((size[1], size[0], size[2]) if size else (None, None, None)))
        for row, s, size in zip(rows, similar.tolist(), sizes, strict=True)
    ]
    others = [copy for i, copy in enumerate(copies) if i != kept]
    missing = [] if numbered else [copy.name for copy in copies if copy.bytes is None]
    return Duplicates(copies[kept], sorted(others, key=lambda copy: -copy.similarity), missing)


def _size(file: Path) -> tuple[int, int, int] | None:
    """Height, width and bytes of an image file; None where there is none, or no longer."""
    size = displayed_size(file)
    return (*size, file.stat().st_size) if size else None


def outliers(
    run: Encoder | None = None,
    data: str | Path | None = None,
    *,
    features: Source | None = None,
    k: int = 10,
    top: int = 20,
    **how: Unpack[Encoding],
) -> list[Outlier]:
    """The odd images: those with the largest mean distance (1 − cosine) to their k nearest others."""
    for name, value in (("k", k), ("top", top)):
        if value < 1:
            raise RequestError(f"{name} is {value}; it must be at least 1")
    embedding = features_of(run, data, features, how)
    if len(embedding) < 2:
        raise RequestError("a single image has no others to be compared with")
    distance, closest = [], []
    with counter("comparing", len(embedding)) as advance:
        for values, index in nearest_others(embedding.features, k, pick_device(how.get("device", "auto"))):
            distance.append((1 - values).mean(1).cpu())
            closest.append(index[:, 0].cpu())
            advance(len(values))
    far, nearest_row = torch.cat(distance), torch.cat(closest)
    order = far.sort(descending=True, stable=True).indices[:top].tolist()
    return [
        Outlier(embedding.names[i], float(far[i]), embedding.names[int(nearest_row[i])], embedding.label(i))
        for i in order
    ]


def subset(
    run: Encoder | None = None,
    data: str | Path | None = None,
    size: int = 0,
    *,
    features: Source | None = None,
    seed: int = 0,
    **how: Unpack[Encoding],
) -> Subset:
    """A diverse few: from a random first image on, always the image farthest from all chosen ones (k-center)."""
    if size < 1:
        raise RequestError(f"size is {size}; say how many images to choose, at least 1")
    embedding = features_of(run, data, features, how)
    if size > len(embedding):
        raise RequestError(f"a subset of {size} was asked of {len(embedding)} images")
    device = pick_device(how.get("device", "auto"))
    chosen, distances, radius = farthest_first(embedding.features, size, seed, device)
    labels = [embedding.label(row) for row in chosen]
    return Subset([embedding.names[row] for row in chosen], chosen, labels, distances, radius)


def farthest_first(
    features: np.ndarray, size: int, seed: int, device: torch.device
) -> tuple[list[int], list[float], float]:
    """Greedy k-center: the rows chosen, the distance of each to those before it, and how far any image is from them.

    Distances only shrink as more are chosen, so an old one is a bound from above: only the images with the largest
    bounds are compared with what was chosen since, and the choice is the same as if all were.
    """
    chosen = [int(torch.randint(len(features), (1,), generator=generator(seed, "diverse subset")))]
    centers = torch.empty(size, features.shape[1], device=device)
    bound, known = np.empty(len(features), np.float32), np.ones(len(features), np.int64)  # known: so many are compared
    distances = [0.0]
    with counter("choosing", size) as advance:
        centers[0] = unit(features[chosen[0]][None], device)[0]
        for start, block in blocks(features, device):
            bound[start : start + len(block)] = (1 - block @ centers[0]).cpu().numpy()
        bound[chosen[0]] = -np.inf
        advance(1)
        while len(chosen) < size:
            row = int(bound.argmax())
            if known[row] == len(chosen):
                centers[len(chosen)] = unit(features[row][None], device)[0]
                distances.append(max(0.0, float(bound[row])))
                chosen.append(row)
                bound[row] = -np.inf
                advance(1)
                continue
            few = min(LOOKED_AT, len(features))
            rows = np.sort(np.argpartition(-bound, few - 1)[:few])
            # Of many that are equally far, those looked at may all be known already, and the first one not among them.
            rows = np.union1d(rows[known[rows] < len(chosen)], [row])
            since = centers[known[rows].min() : len(chosen)]
            now = (1 - (unit(features[rows], device) @ since.T).amax(1)).cpu().numpy()
            bound[rows], known[rows] = np.minimum(bound[rows], now), len(chosen)
    radius = max(float(1 - nearest(block, centers, 1)[0].min()) for _, block in blocks(features, device))
    return chosen, distances, max(0.0, radius)
