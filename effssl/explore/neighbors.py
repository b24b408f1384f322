"""Search by example: the images most similar to a query."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from effssl.data.folder import images_of
from effssl.data.formats import examine, reason
from effssl.explore.embedding import FeaturesLike, load_embedding
from effssl.explore.encoder import EncoderLike, FeatureOptions, encoder_digest, open_encoder
from effssl.explore.feature_files import Embedding
from effssl.explore.gallery import printable
from effssl.explore.similarity import nearest_in_blocks, normalized
from effssl.features.extract import feature_batches
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.device import pick_device
from effssl.runtime.errors import RequestError

if TYPE_CHECKING:
    from typing_extensions import Unpack

Query = str | Path | int | Image.Image


@dataclass(frozen=True)
class Neighbor:
    """An image with its cosine similarity to the query and, where known, its label."""

    name: str
    similarity: float
    label: str | None


@dataclass(frozen=True)
class Neighbors:
    """The images most similar to a query, the most similar first; never the query itself."""

    query: str
    found: list[Neighbor]


def neighbors(
    run: EncoderLike | None = None,
    data: str | Path | None = None,
    query: Query | Sequence[Query] = (),
    *,
    features: FeaturesLike | None = None,
    k: int = 10,
    **options: Unpack[FeatureOptions],
) -> list[Neighbors]:
    """The k images most similar to each query: a file, a PIL image, or the index of an image without a path.

    With `features`, the run is only needed for queries that are not among them.
    """
    queries = [query] if isinstance(query, (str, Path, int, Image.Image)) else list(query)
    if not queries:
        raise RequestError("which image? --query IMAGE")
    if k < 1:
        raise RequestError(f"k is {k}; it must be at least 1")
    if features is None:  # a missing file is reported before anything slow
        for file in queries:
            named = isinstance(file, Path) or (isinstance(file, str) and not file.isdigit())
            if named and not any(parent.is_file() for parent in Path(str(file)).expanduser().parents):  # no archive
                _check_exists(Path(str(file)).expanduser())
    embedding = load_embedding(run if features is None else None, data, features, options)
    rows = _rows_of(queries, embedding)
    x = _query_features(run, queries, rows, embedding, options)
    device = pick_device(options.get("device", "auto"))
    values, index = nearest_in_blocks(normalized(x, device), embedding.features, k + 1)
    results = []
    for asked, own, similarities, found in zip(queries, rows, values.tolist(), index.tolist(), strict=True):
        others = [(value, row) for value, row in zip(similarities, found, strict=True) if row != own][:k]
        nearest = [Neighbor(embedding.names[row], value, embedding.label(row)) for value, row in others]
        results.append(Neighbors(_title(asked), nearest))
    return results


def _check_exists(file: Path) -> None:
    if not file.is_file():
        raise RequestError(f"no image at {file}")


def _title(query: Query) -> str:
    if isinstance(query, Image.Image):
        return str(getattr(query, "filename", "")) or "image"
    return printable(query) if isinstance(query, Path) else str(query)


def _rows_of(queries: Sequence[Query], embedding: Embedding) -> list[int | None]:
    """The row of each query among the features, or None."""

    def key(name: str | Path | int) -> str:
        return str(name) if embedding.numbered else os.path.abspath(printable(os.path.expanduser(str(name))))

    wanted = {key(query) for query in queries if not isinstance(query, Image.Image)}
    found: dict[str, int] = {}
    for row, name in enumerate(embedding.names):
        if (known := name if embedding.numbered else os.path.abspath(name)) in wanted:
            found.setdefault(known, row)
    return [None if isinstance(query, Image.Image) else found.get(key(query)) for query in queries]


def _query_features(
    run: EncoderLike | None,
    queries: Sequence[Query],
    rows: Sequence[int | None],
    embedding: Embedding,
    options: FeatureOptions,
) -> np.ndarray:
    """Features of the queries, Q×dim: those of their rows, or computed now by the same encoder."""
    new = [query for query, row in zip(queries, rows, strict=True) if row is None]
    computed: Iterator[Tensor] = iter(())
    if new:
        if run is None:
            raise RequestError(f"{_title(new[0])} is not among the features; add RUN, the encoder that computed them")
        encoder = open_encoder(run, options)
        if embedding.metadata and embedding.metadata.encoder_digest != encoder_digest(encoder):
            raise RequestError("the features are of another encoder than RUN; compute them again, or leave out RUN")
        computed = _encode(encoder, new)
    return np.stack([next(computed).numpy() if row is None else embedding.features[row] for row in rows])


def _encode(encoder: LoadedEncoder, queries: Sequence[Query]) -> Iterator[Tensor]:
    """Features of each query image."""
    files = [Path(str(query)).expanduser() for query in queries if not isinstance(query, Image.Image)]
    of_files = iter(_encode_files(encoder, files))
    for query in queries:
        yield encoder.embed([query])[0] if isinstance(query, Image.Image) else next(of_files)


def _encode_files(encoder: LoadedEncoder, files: Sequence[Path]) -> list[Tensor]:
    abouts = []
    for file in files:
        _check_exists(file)
        about = examine(file)
        if about is None:
            raise RequestError(f"{file} is not an image that can be read{reason(file)}")
        abouts.append(about)
    features: list[Tensor] = []
    images, _ = images_of(list(files), abouts)
    if images is not None:
        with torch.inference_mode():
            for h, _ in feature_batches(encoder, images, workers=0):
                features += h.unbind()
    if len(features) < len(files):
        raise RequestError(f"{len(files) - len(features)} of the query images cannot be decoded")
    return features
