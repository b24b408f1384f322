"""Clusters of images whose groups are known."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import effssl
from effssl.data import ArrayImages, Data
from effssl.network.loaded import LoadedEncoder


def test_clusters_find_what_is_there(encoder: LoadedEncoder, digits: Data) -> None:
    """Copies of four images are four clusters, whatever the classes are called."""
    four = ArrayImages(digits.test.pixels[:4].repeat(20, 1, 1, 1), torch.tensor([2, 0, 3, 1]).repeat(20), list("abcd"))
    score = effssl.evaluate("clusters", encoder, dataclasses.replace(digits, train=four, test=four))
    assert score.value == pytest.approx(100)
    assert score.also["ARI"] == pytest.approx(100)
    real = effssl.evaluate("clusters", encoder, digits)
    assert 5 < real.value < 95
    with pytest.raises(effssl.RequestError, match="clusters is 1000; it must be between 2 and"):
        effssl.evaluate("clusters", encoder, digits, clusters=1000)
