"""A small encoder with a projector, and the digits."""

from __future__ import annotations

import pytest

import effssl
from effssl.data import Data
from effssl.features.extract import Features, extract
from effssl.network.encoders import build_encoder
from effssl.network.heads import mlp
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.randomness import seeded


@pytest.fixture(scope="session")
def encoder() -> LoadedEncoder:
    about = {"image_size": 16, "mean": [0.5] * 3, "std": [0.25] * 3}
    with seeded(0, "test"):
        made = LoadedEncoder(build_encoder("small", 16), about)
        made.projector = mlp([made.dim, 64, 32])
    return made.requires_grad_(False).eval()


@pytest.fixture(scope="session")
def digits() -> Data:
    return effssl.open_data("digits")


@pytest.fixture(scope="session")
def features(encoder: LoadedEncoder, digits: Data) -> tuple[Features, Features]:
    return extract(encoder, digits.train), extract(encoder, digits.test)
