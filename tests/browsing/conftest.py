"""Photographs whose names try to break a page, and pages of them by an untrained encoder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from effssl.cli import main

EVIL = "<img src=x onerror=window.broken=1> & 'it' \"is\".png"
EVIL_LABEL = "<script>window.broken=1<!--"
LONG = "a photograph with a name that is longer than any thumbnail is wide, and goes on for a while.png"
ENCODER = ["small", "--weights", "random", "--image-size", "32", "--workers", "0"]


@pytest.fixture(scope="session")
def album(photos: Tensor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 tiles in three folders; one copied, one as a larger file, noise, a file that is no image."""
    root = tmp_path_factory.mktemp("browsing") / "album"
    tiles = [Image.fromarray(tile.permute(1, 2, 0).numpy()) for tile in photos[:48]]
    folders = ("china", "flower", EVIL_LABEL)
    for folder in folders:
        (root / folder).mkdir(parents=True)
    for i, tile in enumerate(tiles):
        tile.save(root / folders[i % 3] / f"{i:02}.png")
    tiles[0].save(root / "china" / EVIL)
    tiles[1].resize((300, 300)).save(root / "flower" / LONG)
    noise = torch.randint(256, (96, 96, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    Image.fromarray(noise.numpy()).save(root / "flower/noise.png")
    (root / "flower/broken.jpg").write_bytes(b"not an image")
    return root


@pytest.fixture(scope="session")
def features(album: Path) -> Path:
    out = album.parent / "features.npz"
    main(["embed", *ENCODER, "--data", str(album), "--labels", "folders", "--out", str(out)])
    return out


@pytest.fixture(scope="session")
def page_file(features: Path, album: Path) -> Path:
    """The page as a file."""
    out = album.parent / "page.html"
    main(["browse", "--features", str(features), "--data", str(album), "--threshold", "0.999", "--size", "10", "--top",
          "7", "--out", str(out)])  # fmt: skip
    return out
