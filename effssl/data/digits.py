"""The embedded set: scikit-learn's 1,797 real handwritten digits of 8×8 pixels. Nothing to download."""

from __future__ import annotations

from functools import cache

import torch

from effssl.data.arrays import ArrayImages
from effssl.data.dataset import Data
from effssl.runtime.randomness import generator


def open_digits(spec: str = "digits", labels: str = "auto") -> Data:
    """Open the digits: a fixed split of 1,437 training and 360 test images."""
    return _digits()


@cache  # read once: a study opens it for every evaluation of every arm
def _digits() -> Data:
    from sklearn import datasets

    raw = datasets.load_digits()
    gray = torch.from_numpy(raw.images * (255 / 16)).round().to(torch.uint8)  # N×8×8
    pixels = gray[:, None].expand(-1, 3, -1, -1).contiguous()
    images = ArrayImages(pixels, torch.from_numpy(raw.target).long(), [str(name) for name in raw.target_names])
    order = torch.randperm(len(images), generator=generator(0, "digits"))
    return Data("digits", images.select(order[:1437].sort().values), images.select(order[1437:].sort().values))
