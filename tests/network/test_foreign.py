"""Encoders from elsewhere give the features of their own library."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

import effssl
from effssl.network import foreign
from effssl.network.foreign import MEAN, STD


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.resnet18(weights=None).eval()


def theirs(model: nn.Module, images: Tensor) -> Tensor:
    """What the model's own library computes before the classifier."""
    x = (images.float() / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    model.fc = nn.Identity()
    with torch.no_grad():
        return model(x)


@pytest.mark.parametrize("prefix", ["", "module.encoder_q.", "backbone.", "model.net."])
@pytest.mark.parametrize("nested", [None, "state_dict", "model"])
def test_weights_with_any_prefix(
    resnet: nn.Module, photos: Tensor, tmp_path: Path, prefix: str, nested: str | None
) -> None:
    state = {f"{prefix}{key}": value for key, value in resnet.state_dict().items()}
    state["queue"] = torch.zeros(3)  # a training script's other tensors
    torch.save({nested: state, "epoch": 3} if nested else state, tmp_path / "w.pth")
    encoder = effssl.load(tmp_path / "w.pth", encoder="resnet18", image_size=96)
    assert not encoder.training
    assert not any(p.requires_grad for p in encoder.parameters())
    assert torch.allclose(encoder(photos[:4]), theirs(resnet, photos[:4]), atol=1e-4)


def test_safetensors_and_small_stems(photos: Tensor, tmp_path: Path) -> None:
    model = torchvision.models.resnet18(weights=None)
    model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    model.fc = nn.Identity()
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    encoder = effssl.load(tmp_path / "w.safetensors", encoder="resnet18")
    assert encoder.size == 32  # a 3×3 stem is one for small images
    x = encoder.preprocess(photos[:2])
    model.eval()
    with torch.no_grad():
        assert torch.allclose(encoder.encoder(x), model(x), atol=1e-4)


def test_timm_and_random_weights(photos: Tensor, tmp_path: Path) -> None:
    model = timm.create_model("resnet10t", num_classes=7).eval()
    torch.save(model.state_dict(), tmp_path / "w.pt")
    encoder = effssl.load(tmp_path / "w.pt", encoder="timm:resnet10t", image_size=64)
    x = encoder.preprocess(photos[:2])
    with torch.no_grad():
        assert torch.allclose(
            encoder.encoder(x), model.forward_head(model.forward_features(x), pre_logits=True), atol=1e-4
        )
    assert effssl.load("resnet18", weights="random", image_size=64)(photos[:2]).shape == (2, 512)
    assert effssl.load("small", weights="random").size == 32


def test_names_load_the_librarys_weights_or_say_why_not(monkeypatch: pytest.MonkeyPatch, resnet: nn.Module) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", unreachable)
    monkeypatch.setattr(torchvision.models._api, "load_state_dict_from_url", unreachable)
    with pytest.raises(effssl.RequestError, match=r"weights of resnet18 cannot be had \(no route to host\).*--weights"):
        effssl.load("resnet18")
    with pytest.raises(effssl.RequestError, match="small has no pretrained weights"):
        effssl.load("small")


@pytest.mark.parametrize(
    ("source", "encoder", "says"),
    [
        ("w.pth", "", "does not say which network it is; add --encoder"),
        ("w.pth", "resnet50", "is --encoder right"),
        ("nowhere.pth", "resnet18", "no run folder or weight file"),
        ("resnet19", "", "did you mean resnet1"),
        ("text.pth", "resnet18", "is not a file of weights"),
        ("empty.pth", "resnet18", "holds no weights by name"),
    ],
)
def test_what_cannot_be_loaded(resnet: nn.Module, in_tmp: Path, source: str, encoder: str, says: str) -> None:
    torch.save(resnet.state_dict(), "w.pth")
    Path("text.pth").write_text("hello")
    torch.save({"epoch": 3}, "empty.pth")
    with pytest.raises(effssl.RequestError, match=says):
        effssl.load(source, encoder=encoder)


class _Evil:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("owned"),))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")
def test_a_file_that_would_run_code_is_refused(in_tmp: Path) -> None:
    torch.save({"state_dict": _Evil()}, "evil.pth")
    with pytest.raises(effssl.RequestError, match=r"could run code|not a file of weights"):
        foreign.read_weights(Path("evil.pth"))
    Path("plain.pt").write_bytes(pickle.dumps(_Evil()))
    with pytest.raises(effssl.RequestError, match=r"could run code|not a file of weights"):
        foreign.read_weights(Path("plain.pt"))
    assert not Path("owned").exists()
