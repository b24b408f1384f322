"""Near-duplicates among images: groups of candidates. Nothing is moved or deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from effssl.data.formats import examine
from effssl.explore.embedding import FeaturesLike, load_embedding
from effssl.explore.encoder import EncoderLike, FeatureOptions
from effssl.explore.feature_files import Embedding
from effssl.explore.gallery import real_path
from effssl.explore.similarity import BLOCK, normalized, pairs_above, typical_similarity
from effssl.runtime.device import pick_device
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import progress_bar, say

if TYPE_CHECKING:
    from typing_extensions import Unpack

ROUNDING = 1e-6  # largest deviation from similarity 1 of two features of the same pixels
LARGE, LARGE_SHARE = 20, 0.1  # a group larger than both, in images and as a share of all, is unlikely to be duplicates


@dataclass(frozen=True)
class Copy:
    """An image of a group: its similarity to the image to keep, and its size where it has a file."""

    name: str
    similarity: float
    width: int | None
    height: int | None
    bytes: int | None

    @property
    def extent(self) -> tuple[int, int]:
        """Pixels, then bytes: the largest image of a group is the one to keep."""
        return ((self.width or 0) * (self.height or 0), self.bytes or 0)


@dataclass(frozen=True)
class Duplicates:
    """A group of candidates: the largest image, which is the one to keep, and the others.

    Where files are missing, the largest image is unknown, and `keep` is no advice.
    """

    keep: Copy
    others: list[Copy]
    missing: list[str] = field(default_factory=list)  # files that do not exist


def duplicates(
    run: EncoderLike | None = None,
    data: str | Path | None = None,
    *,
    features: FeaturesLike | None = None,
    threshold: float = 0.97,
    **options: Unpack[FeatureOptions],
) -> list[Duplicates]:
    """Groups of images that are connected by similarities of at least the threshold, the most similar first.

    It also prints the typical similarity of an image to its nearest neighbor: a threshold near that finds more than
    duplicates.
    """
    if not 0 < threshold <= 1:
        raise RequestError(f"threshold is {threshold}; it must be above 0 and at most 1")
    # The threshold is one for h. Whitened features may be those of an image and of its mirror image at once.
    embedding = load_embedding(run, data, features, options | {"whiten": "off"})
    device = pick_device(options.get("device", "auto"))
    groups = list(_connected_groups(embedding, threshold, device))
    largest = max(map(len, groups), default=0)
    if largest > max(LARGE, len(embedding) * LARGE_SHARE):
        say(
            f"{largest} of {len(embedding)} images are one group: at a threshold of {threshold} this encoder "
            "distinguishes few images; raise --threshold"
        )
    if len(embedding) > 1:
        _compare_with_typical(typical_similarity(embedding.features, device), threshold)
    found = [_ranked(rows, embedding, device) for rows in groups]
    if missing := [name for group in found for name in group.missing]:
        say(f"the image to keep is unknown where files are missing ({len(missing)}), e.g. {missing[0]}")
    return sorted(found, key=lambda group: -group.others[0].similarity)


def _connected_groups(embedding: Embedding, threshold: float, device: torch.device) -> Iterator[np.ndarray]:
    """Row numbers of each group of at least two connected images."""
    components = _Components(len(embedding))
    with progress_bar("comparing", len(embedding)) as advance:
        for a, b in pairs_above(embedding.features, threshold - ROUNDING, device, advance):
            components.join(a, b)
    roots = components.roots(np.arange(len(embedding)))
    order = np.argsort(roots, kind="stable")
    starts = np.flatnonzero(np.diff(roots[order], prepend=-1))
    return (rows for rows in np.split(order, starts[1:]) if len(rows) > 1)


class _Components:
    """Connected components of a graph whose edges arrive in parts (union-find)."""

    def __init__(self, count: int) -> None:
        self.parent = np.arange(count)

    def roots(self, rows: np.ndarray) -> np.ndarray:
        """The component of each row, identified by its first row."""
        while not np.array_equal(up := self.parent[rows], rows):
            rows = up
        return rows

    def join(self, a: np.ndarray, b: np.ndarray) -> None:
        """Add edges between the rows `a` and `b`."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        a, b = self.roots(a), self.roots(b)
        a, b = a[a != b], b[a != b]
        if not len(a):
            return
        roots, place = np.unique(np.concatenate([a, b]), return_inverse=True)
        graph = coo_array((np.ones(len(a), bool), (place[: len(a)], place[len(a) :])), (len(roots), len(roots)))
        component = connected_components(graph, directed=False)[1]
        first = np.full(component.max() + 1, len(self.parent))
        np.minimum.at(first, component, roots)
        self.parent[roots] = first[component]


def _compare_with_typical(similarity: float, threshold: float) -> None:
    """Warn where the threshold is near the typical similarity: to an untrained encoder all images are similar."""
    say(f"the median similarity of an image to its nearest neighbor is {similarity:.4f}")
    if threshold - similarity < 1 - threshold:
        say(
            f"a threshold of {threshold} is near that or below it, so many candidates may only be similar to this "
            f"encoder; raise --threshold, to {1 - (1 - similarity) / 4:.4g} for example, or train longer"
        )


def _ranked(rows: np.ndarray, embedding: Embedding, device: torch.device) -> Duplicates:
    """A group with its largest image first."""
    sizes = [(None, None, None) if embedding.numbered else _size(real_path(embedding.names[row])) for row in rows]
    images = [Copy(embedding.names[row], 1.0, *size) for row, size in zip(rows, sizes, strict=True)]
    kept = max(range(len(rows)), key=lambda i: (images[i].extent, -i))
    center = normalized(embedding.features[rows[kept]][None], device)[0]
    block = max(1, BLOCK // embedding.features.shape[1])
    similarity = torch.cat(
        [normalized(embedding.features[rows[i : i + block]], device) @ center for i in range(0, len(rows), block)]
    ).clamp(max=1)
    copies = [replace(image, similarity=value) for image, value in zip(images, similarity.tolist(), strict=True)]
    others = [copy for i, copy in enumerate(copies) if i != kept]
    missing = [] if embedding.numbered else [copy.name for copy in copies if copy.bytes is None]
    return Duplicates(copies[kept], sorted(others, key=lambda copy: -copy.similarity), missing)


def _size(file: Path) -> tuple[int, int, int] | tuple[None, None, None]:
    """Width, height and bytes of an image file, if it exists."""
    about = examine(file)
    if about is None:
        return None, None, None
    height, width = about.size
    return width, height, file.stat().st_size
