"""Searching by example: the images most similar to a given one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from effssl.data.folder import displayed_size
from effssl.data.sets import FolderImages
from effssl.explore.embedding import Encoder, Source, features_of
from effssl.explore.feature_files import Embedding
from effssl.explore.gallery import Encoding, encoder_digest, open_encoder, printable
from effssl.explore.similarity import nearest_among, unit
from effssl.features.extract import feature_batches
from effssl.runtime.device import pick_device
from effssl.runtime.errors import RequestError

if TYPE_CHECKING:
    from typing_extensions import Unpack

Query = str | Path | int | Image.Image


@dataclass(frozen=True)
class Found:
    """An image beside another one: its name, its cosine similarity, its label where known."""

    name: str
    similarity: float
    label: str | None


@dataclass(frozen=True)
class Neighbors:
    """The images most similar to a query, the most similar first; never the query itself."""

    query: str
    found: list[Found]


def neighbors(
    run: Encoder | None = None,
    data: str | Path | None = None,
    query: Query | Sequence[Query] = (),
    *,
    features: Source | None = None,
    k: int = 10,
    **how: Unpack[Encoding],
) -> list[Neighbors]:
    """The k images most similar to each query: a file, a PIL image, or an image's number where they have no paths.

    With `features`, the run is only needed for queries that are not among them.
    """
    queries = [query] if isinstance(query, (str, Path, int, Image.Image)) else list(query)
    if not queries:
        raise RequestError("which image? --query IMAGE")
    if k < 1:
        raise RequestError(f"k is {k}; it must be at least 1")
    if features is None:  # said before anything slow
        for file in queries:
            if isinstance(file, Path) or (isinstance(file, str) and not file.isdigit()):
                _must_exist(Path(file).expanduser())
    embedding = features_of(run if features is None else None, data, features, how)
    device = pick_device(how.get("device", "auto"))
    rows = _rows_of(queries, embedding)
    new = [q for q, row in zip(queries, rows, strict=True) if row is None]
    if new and run is None:
        raise RequestError(f"{_title(new[0])} is not among the features; add RUN, the encoder that made them")
    encoded = iter(_encode(run, new, embedding, how)) if run is not None and new else iter(())
    x = np.stack([next(encoded).numpy() if row is None else embedding.features[row] for row in rows])
    values, index = nearest_among(unit(x, device), embedding.features, k + 1)
    results = []
    for asked, own, similar, found in zip(queries, rows, values.tolist(), index.tolist(), strict=True):
        pairs = [(s, row) for s, row in zip(similar, found, strict=True) if row != own][:k]
        results.append(
            Neighbors(_title(asked), [Found(embedding.names[row], s, embedding.label(row)) for s, row in pairs])
        )
    return results


def _must_exist(file: Path) -> None:
    if not file.is_file():
        raise RequestError(f"no image at {file}")


def _title(query: Query) -> str:
    if isinstance(query, Image.Image):
        return str(getattr(query, "filename", "")) or "image"
    return printable(query) if isinstance(query, Path) else str(query)


def _rows_of(queries: Sequence[Query], among: Embedding) -> list[int | None]:
    """Which rows the queries are, where they are among the images."""
    numbered = bool(among.about and among.about.numbered)

    def place(name: str | Path | int) -> str:
        return str(name) if numbered else os.path.abspath(printable(os.path.expanduser(str(name))))

    wanted = {place(q): None for q in queries if not isinstance(q, Image.Image)}
    found: dict[str, int] = {}
    for row, name in enumerate(among.names):
        if (known := name if numbered else os.path.abspath(name)) in wanted:
            found.setdefault(known, row)
    return [None if isinstance(q, Image.Image) else found.get(place(q)) for q in queries]


def _encode(run: Encoder, queries: Sequence[Query], among: Embedding, how: Encoding) -> Iterable[Tensor]:
    """Features of query images, by the same encoder as the others."""
    encoder = open_encoder(run, how)
    if among.about and among.about.encoder_digest != encoder_digest(encoder):
        raise RequestError("the features were made by another encoder than this one; make them again, or drop RUN")
    files = [Path(str(q)).expanduser() for q in queries if not isinstance(q, Image.Image)]
    sizes = []
    for file in files:
        _must_exist(file)
        if (size := displayed_size(file)) is None:
            raise RequestError(f"{file} is not an image that can be read")
        sizes.append(size)
    made: list[Tensor] = []
    with torch.inference_mode():
        for h, _ in feature_batches(encoder, FolderImages(files, torch.tensor(sizes)), workers=0) if files else ():
            made += h.unbind()
    if len(made) < len(files):
        raise RequestError(f"{len(files) - len(made)} of the query images cannot be decoded")
    by_file = iter(made)
    for q in queries:
        yield encoder.embed([q])[0] if isinstance(q, Image.Image) else next(by_file)
