"""Labelled photographs for the terms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from effssl.data import ArrayImages, Data


@pytest.fixture(scope="session")
def data(tiny_photos: Tensor) -> Data:
    return Data("photos", ArrayImages(tiny_photos, torch.arange(256) % 4, list("abcd")))
