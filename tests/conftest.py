"""Real images and small real runs that the tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded, and for the processes that tests start
os.environ["EFFSSL_REPORT"] = "off"  # hundreds of tiny runs need no page each; tests of the report ask for theirs

from effssl.runtime.processor import avoid_broken_amx

avoid_broken_amx()  # before torch's first product

import pytest
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor

from effssl.objectives.options import TERMS
from tests.pages import browser, visit  # noqa: F401  fixtures

torch.set_num_threads(1)  # two test processes share two cores


def pytest_addoption(parser: pytest.Parser) -> None:
    """A flag that writes what docs show anew."""
    parser.addoption("--write-samples", action="store_true", help="write the samples of docs as commands print them")


@pytest.fixture(scope="session")
def photos() -> Tensor:
    """64 tiles of 96×96 from two photographs, uint8."""
    tiles = []
    for image in load_sample_images().images:  # 427×640×3
        pixels = torch.from_numpy(image.copy()).permute(2, 0, 1)
        tiles += [pixels[:, 100 * i : 100 * i + 96, 77 * j : 77 * j + 96] for i in range(4) for j in range(8)]
    return torch.stack(tiles)


@pytest.fixture(scope="session")
def tiny_photos(photos: Tensor) -> Tensor:
    """256 tiles of 24×24 from the same photographs, uint8: enough for a batch or two."""
    parts = photos.unfold(2, 24, 48).unfold(3, 24, 48)  # 64×3×2×2×24×24
    return parts.permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, 24, 24).contiguous()


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def only_our_terms() -> Iterator[None]:
    """Terms that a test registers are gone after it."""
    known = dict(TERMS)
    yield
    TERMS.clear()
    TERMS.update(known)
