"""Nearest neighbors, against brute force and in blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import effssl
from effssl.explore.feature_files import Embedding


def test_neighbors_are_the_most_similar_images(
    embedding: Embedding, similarity: np.ndarray, small_blocks: list[int]
) -> None:
    queries = [embedding.names[row] for row in (0, 20, 67)]
    for query, result in zip(queries, effssl.neighbors(features=embedding, query=queries, k=9), strict=True):
        row = embedding.names.index(query)
        others = np.delete(similarity[row], row)
        np.testing.assert_allclose([found.similarity for found in result.found], np.sort(others)[::-1][:9], atol=1e-5)
        for found in result.found:
            assert similarity[row, embedding.names.index(found.name)] == pytest.approx(found.similarity, abs=1e-5)
            assert found.label == Path(found.name).parent.name
        assert query == result.query
        assert query not in [found.name for found in result.found]
    assert small_blocks


def test_a_query_from_elsewhere_is_encoded_and_finds_its_original(
    run: Path, folder: Path, embedding: Embedding, tmp_path: Path
) -> None:
    file = tmp_path / "elsewhere.png"
    file.write_bytes((folder / "china/17.png").read_bytes())
    first = effssl.neighbors(run, folder, str(file), k=1, workers=0)[0].found[0]
    assert first.name == str(folder / "china/17.png")
    assert first.similarity == pytest.approx(1, abs=1e-5)
    again, picture = effssl.neighbors(run, query=[file, Image.open(file)], features=embedding, k=3)
    assert again.found[0] == pytest.approx(first) or again.found[0].name == first.name
    assert picture.found[0].name == first.name
    assert len(effssl.neighbors(features=embedding, query=str(folder / "china/17.png"), k=500)[0].found) == 67
