"""A loaded encoder takes images of any size and dtype and does not change them."""

from __future__ import annotations

import pytest
import torch

from effssl.network.encoders import build_encoder
from effssl.network.loaded import LoadedEncoder


@pytest.fixture(scope="module")
def encoder() -> LoadedEncoder:
    return LoadedEncoder(build_encoder("small", 16), {"image_size": 16, "mean": [0.5] * 3, "std": [0.25] * 3}).eval()


@pytest.mark.parametrize("side", [16, 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_any_size_and_dtype_without_changing_the_images(encoder: LoadedEncoder, side: int, dtype: torch.dtype) -> None:
    images = torch.rand(4, 3, side, side).to(dtype)
    before = images.clone()
    assert encoder(images).isfinite().all()
    assert torch.equal(images, before)


def test_half_precision_gives_the_same_features(encoder: LoadedEncoder) -> None:
    images = (torch.randint(0, 256, (4, 3, 16, 16)) / 255).half()
    assert torch.allclose(encoder(images), encoder(images.float()), atol=1e-4)


@pytest.mark.parametrize("side", [16, 24])
def test_a_gradient_reaches_the_image(encoder: LoadedEncoder, side: int) -> None:
    images = torch.rand(2, 3, side, side, requires_grad=True)
    encoder(images).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().max() > 0
