"""Map, neighbors and probe."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from effssl.data import ArrayImages
from effssl.report.embedding import cells, gallery, positions, probe
from effssl.report.sample import Sample, sample_images
from effssl.verbs import Run
from tests.report.conftest import data_of


def test_neighbors_have_the_largest_similarity(digits: Run, written: Path) -> None:
    found = data_of(written)["map"]
    encoder = digits.encoder()
    images = sample_images(digits.data(), encoder, 200).images
    with torch.inference_mode():
        h = torch.nn.functional.normalize(encoder(images.pixels), dim=1)
    similarity = (h @ h.T).fill_diagonal_(-2)
    for row in (0, 17, 99):
        expected = similarity[row].topk(12)
        ours = similarity[row, found["neighbors"][row]]
        assert torch.allclose(ours, expected.values, atol=1e-5)
        assert row not in found["neighbors"][row]
        assert found["similarity"][row] == [round(100 * s) for s in expected.values.tolist()]


def test_a_collapsed_encoder_has_a_map_of_one_point() -> None:
    maps = positions(np.ones((40, 8)) / 8**0.5)
    assert list(maps) == ["PCA"]
    assert len({tuple(place) for place in maps["PCA"]}) == 1


def test_probe_and_gallery() -> None:
    labels = torch.arange(40) % 2
    h = torch.nn.functional.one_hot(labels, 4).float()
    images = ArrayImages(torch.zeros(40, 3, 8, 8, dtype=torch.uint8), labels, ["a", "b"])
    sample = Sample(images, [str(i) for i in range(40)], torch.arange(40) >= 20)
    found = probe(h, sample)
    assert found is not None
    assert found["accuracy"] == 100
    assert found["cells"] == [[0, 0, 10], [1, 1, 10]]
    assert cells(torch.tensor([0, 0, 1]), torch.tensor([1, 1, 1])) == [[0, 1, 2], [1, 1, 1]]
    shown = gallery([[((i + 2) % 40, 99)] for i in range(40)], labels.tolist(), sample.held_out)
    assert shown["counts"] == [20, 0]
    assert all(row >= 20 for row in shown["hits"])
