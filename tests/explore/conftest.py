"""A folder of real photographs with copies, an odd one and broken ones; an encoder; their features."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import effssl
from effssl.explore import similarity as blockwise
from effssl.explore.feature_files import Embedding
from effssl.network.loaded import LoadedEncoder


@pytest.fixture(scope="session")
def folder(photos: Tensor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 tiles in two sub-folders; one copied, one encoded again, one cropped a little; noise; two broken files."""
    root = tmp_path_factory.mktemp("explore") / "photos"
    tiles = [Image.fromarray(tile.permute(1, 2, 0).numpy()) for tile in photos]
    for name in ("china", "flower", "added"):
        (root / name).mkdir(parents=True)
    for i, tile in enumerate(tiles):
        tile.save(root / ("china", "flower")[i // 32] / f"{i:02}.png")
    tiles[3].save(root / "added/copy of 03.png")
    tiles[40].save(root / "added/encoded 40.jpg", quality=85)
    tiles[50].crop((1, 1, 95, 95)).save(root / "added/cropped [50].png")
    noise = torch.randint(256, (96, 96, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    Image.fromarray(noise.numpy()).save(root / "added/noise.png")
    (root / "added/broken.jpg").write_bytes(b"not an image")
    Image.fromarray(noise.numpy()).save(root / "added/cut off.jpg", quality=95)
    whole = (root / "added/cut off.jpg").read_bytes()
    (root / "added/cut off.jpg").write_bytes(whole[: len(whole) // 2])  # its header is fine
    return root


@pytest.fixture(scope="session")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few seconds on those photographs."""
    out = tmp_path_factory.mktemp("runs") / "run"
    settings = {"epochs": 3, "batch_size": 32, "image_size": 32, "workers": 0, "quiet": True}
    settings |= {"recipe": "cpu-simclr", "views": {"rotated": {"size": 0.5, "update_stats": False}}}
    effssl.pretrain(str(folder), "simclr+rotation", out=out, **settings)
    return out


@pytest.fixture(scope="session")
def encoder(run: Path) -> LoadedEncoder:
    return effssl.load(run)


@pytest.fixture(scope="session")
def embedding(run: Path, folder: Path) -> Embedding:
    return effssl.embed(run, folder, labels="folders", workers=0)


@pytest.fixture(scope="session")
def similarity(embedding: Embedding) -> np.ndarray:
    """All images with all, in double precision."""
    x = np.array(embedding.features, np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x @ x.T


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch, embedding: Embedding) -> Iterator[list[int]]:
    """Blocks of 7 and 5 images, so that the 68 need many; how many numbers were held at a time."""
    held: list[int] = []
    real = blockwise.nearest

    def watched(query: torch.Tensor, bank: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        held.append(max(query.numel(), bank.numel(), len(query) * len(bank)))
        return real(query, bank, k)

    monkeypatch.setattr(blockwise, "BLOCK", 7 * embedding.features.shape[1])
    monkeypatch.setattr(blockwise, "QUERIES", 5)
    monkeypatch.setattr(blockwise, "PAIRS", 16)
    monkeypatch.setattr(blockwise, "nearest", watched)
    yield held
    assert max(held, default=0) <= 7 * embedding.features.shape[1]
