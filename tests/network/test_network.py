from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torchvision import models

from effssl.network.encoders import build_encoder, refused
from effssl.network.network import Network
from effssl.network.options import Projector
from effssl.network.small import Conv3x3, SmallEncoder
from effssl.runtime.errors import RequestError


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_resnet_keys_are_those_of_torchvision(name: str) -> None:
    encoder = build_encoder(name, 32)
    theirs = {key for key in models.get_model(name).state_dict() if not key.startswith("fc.")}
    assert set(encoder.backbone.state_dict()) == theirs
    assert encoder.backbone.conv1.weight.shape[-1] == 3
    assert encoder(torch.zeros(2, 3, 32, 32)).shape == (2, encoder.dim)
    assert encoder.dim == (2048 if name == "resnet50" else 512)


def test_large_images_get_the_standard_stem_and_equal_torchvision() -> None:
    encoder = build_encoder("resnet18", 128).eval()
    theirs = models.resnet18(weights=None)
    theirs.fc = torch.nn.Identity()
    theirs.load_state_dict(encoder.backbone.state_dict())
    x = torch.randn(2, 3, 128, 128)
    assert torch.equal(encoder(x), theirs.eval()(x))
    assert build_encoder("resnet18", 128, stem="small").backbone.conv1.stride == (1, 1)
    assert build_encoder("resnet18", 32, stem="large").backbone.conv1.stride == (2, 2)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "efficientnet_b0", "squeezenet1_1", "timm:resnet10t"])
def test_other_encoders(name: str) -> None:
    if name == "squeezenet1_1":  # its classifier is a convolution
        with pytest.raises(RequestError, match="no final linear layer"):
            build_encoder(name, 64)
        return
    encoder = build_encoder(name, 64)
    assert encoder(torch.zeros(2, 3, 64, 64)).shape == (2, encoder.dim)


def test_an_image_size_that_an_encoder_does_not_take() -> None:
    with pytest.raises(RequestError, match="does not take images of 30"):
        build_encoder("vit_b_16", 30)


@pytest.mark.parametrize(
    "name", ["efficientvit_b0", "fastvit_t8", "deit_tiny_patch16_224", "swin_tiny_patch4_window7_224"]
)
def test_timm_models_built_for_an_image_size(name: str) -> None:
    encoder = build_encoder(f"timm:{name}", 64)
    assert encoder(torch.zeros(2, 3, 64, 64)).shape == (2, encoder.dim)


def test_an_argument_that_a_constructor_does_not_take() -> None:
    with (
        pytest.raises(RequestError, match=r"^mine does not take images of 32×32: .*unexpected keyword"),
        refused("mine", 32),
    ):
        SmallEncoder(16, img_size=32)


@pytest.mark.parametrize("name", ["small", "tiny", "resnet18"])
def test_stages_are_the_network(name: str) -> None:
    network = Network(build_encoder(name, 32), Projector(layers=2, hidden=32, out=16)).eval()
    x = torch.randn(3, 3, 32, 32)
    assert len(network.stages()) == 6  # stem, four blocks, projector
    assert torch.equal(network.run(x), network.g(network.f(x)))
    for cut in range(1, 6):
        assert torch.equal(network.run(network.run(x, stop=cut), start=cut), network.run(x))
    assert torch.equal(network.run(x, stop=5), network.f(x))


def test_tiny_is_small_without_its_first_block() -> None:
    small, tiny = (dict(build_encoder(name, 32).backbone.named_parameters()) for name in ("small-24", "tiny-24"))
    assert {name for name in small if not name.startswith("layer1.")} == set(tiny)
    assert all(tiny[name].shape == small[name].shape for name in tiny)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [1, 2, 3, 4])
def test_tiny_images_are_convolved_by_a_matrix_product(side: int, stride: int) -> None:
    conv = Conv3x3(4, 6, 3, stride, 1, bias=False).double()
    x = torch.randn(5, 4, side, side, dtype=torch.float64, requires_grad=True)
    ours, plain = conv(x), F.conv2d(x, conv.weight, stride=stride, padding=1)
    torch.testing.assert_close(ours, plain)
    g = torch.randn_like(plain)
    torch.testing.assert_close(
        torch.autograd.grad(ours, (x, conv.weight), g), torch.autograd.grad(plain, (x, conv.weight), g)
    )


def test_projector_shapes() -> None:
    encoder = build_encoder("small", 32)

    def kinds(**settings) -> list[str]:
        return [type(layer).__name__ for layer in Network(encoder, Projector(**settings)).projector]

    assert kinds(layers=0) == []
    assert kinds(layers=1) == ["Linear"]
    assert kinds(layers=2, norm=False) == ["Linear", "ReLU", "Linear"]
    assert kinds(layers=3, output_norm=True) == ["Linear", "BatchNorm1d", "ReLU"] * 2 + ["Linear", "BatchNorm1d"]


@pytest.mark.parametrize("name", ["tiny", "resnet18", "mobilenet_v3_small", "timm:vit_tiny_patch4"])
@pytest.mark.parametrize("channels", [1, 12])
def test_encoders_read_other_channels(name: str, channels: int) -> None:
    encoder = build_encoder(name, 32, channels=channels)
    x = torch.randn(4, channels, 32, 32)
    h = encoder(x)
    assert h.shape == (4, encoder.h_dim)
    (h * torch.randn(h.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
    first = next(p for p in encoder.parameters() if p.ndim == 4)
    assert first.shape[1] == channels
    assert bool(first.grad.abs().sum((0, 2, 3)).gt(0).all())  # each channel is read


def test_responses_to_many_channels_are_as_large_as_to_three() -> None:
    spread = {
        channels: float(build_encoder("resnet18", 64, channels=channels).backbone.conv1.weight.std() * channels**0.5)
        for channels in (3, 12)
    }
    assert abs(spread[12] / spread[3] - 1) < 0.05
