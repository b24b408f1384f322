"""Encoders trained elsewhere give the same features as in their own library."""

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
    """Features of the model in its own library."""
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
    state["queue"] = torch.zeros(3)  # another tensor of the training script
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
    assert effssl.load("tiny-8", weights="random").dim == 64


def test_pretrained_weights_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch, resnet: nn.Module) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", unreachable)
    monkeypatch.setattr(torchvision.models._api, "load_state_dict_from_url", unreachable)
    with pytest.raises(effssl.RequestError, match=r"resnet18 cannot be fetched here \(no route to host\); put"):
        effssl.load("resnet18")
    with pytest.raises(effssl.RequestError, match="small has no pretrained weights"):
        effssl.load("small")


@pytest.mark.parametrize(
    ("trained", "copy"),
    [("module.encoder_q.", "module.encoder_k."), ("student.", "teacher."), ("backbone.", "backbone_momentum."),
     ("online_encoder.net.", "target_encoder.net."), ("module.base_encoder.", "module.momentum_encoder.")],
)  # fmt: skip
def test_the_trained_network_is_preferred_to_its_momentum_copy(
    resnet: nn.Module, photos: Tensor, tmp_path: Path, trained: str, copy: str, capsys: pytest.CaptureFixture
) -> None:
    state = resnet.state_dict()
    both = {f"{copy}{key}": torch.zeros_like(value) for key, value in state.items()}
    torch.save(both | {f"{trained}{key}": value for key, value in state.items()}, tmp_path / "w.pth")
    encoder = effssl.load(tmp_path / "w.pth", encoder="resnet18", image_size=96)
    assert torch.allclose(encoder(photos[:2]), theirs(resnet, photos[:2]), atol=1e-4)
    assert f"loaded {trained}, not {copy}" in capsys.readouterr().err


def test_online_network_state_dict_is_found(resnet: nn.Module, tmp_path: Path) -> None:
    state = {f"encoder.{key}": value for key, value in resnet.state_dict().items()}
    copy = {key: torch.zeros_like(value) for key, value in state.items()}
    torch.save({"target_network_state_dict": copy, "online_network_state_dict": state}, tmp_path / "w.pth")
    encoder = effssl.load(tmp_path / "w.pth", encoder="resnet18", image_size=96)
    assert torch.equal(encoder.backbone.conv1.weight, resnet.conv1.weight)


def test_random_weights_are_reproducible() -> None:
    torch.manual_seed(1)
    first = effssl.load("resnet18", weights="random", image_size=64)
    torch.manual_seed(2)
    assert effssl.load("resnet18", weights="random", image_size=64).fingerprint() == first.fingerprint()
    assert first.about["seed"] == 0


def test_pretrained_weights_keep_their_preprocessing(monkeypatch: pytest.MonkeyPatch, photos: Tensor) -> None:
    """Only the download is replaced: the library's own transform and model give the same features."""
    torch.manual_seed(0)
    full = torchvision.models.mobilenet_v3_small(weights=None).eval()
    state = full.state_dict()
    weights = torchvision.models.MobileNet_V3_Small_Weights.DEFAULT
    monkeypatch.setattr(torchvision.models._api, "load_state_dict_from_url", lambda *_, **__: state)
    encoder = effssl.load("mobilenet_v3_small")
    assert (encoder.size, encoder.share, encoder.filter) == (224, 224 / 256, "bilinear")
    full.classifier[-1] = nn.Identity()
    with torch.no_grad():
        expected = full(weights.transforms()(photos[:2]))
    assert torch.allclose(encoder(photos[:2]), expected, atol=0.05 * float(expected.abs().max()))
    assert effssl.load("mobilenet_v3_small", image_size=64).size == 64
    bicubic = foreign.preprocessing("efficientnet_b3")
    assert (bicubic["image_size"], bicubic["share"], bicubic["filter"]) == (300, 300 / 320, "bicubic")
    timms = foreign.preprocessing("timm:resnet10t")
    known = timm.get_pretrained_cfg("resnet10t")
    assert (timms["image_size"], timms["share"]) == (known.input_size[-1], known.crop_pct)
    assert (timms["mean"], timms["std"], timms["filter"]) == (known.mean, known.std, known.interpolation)


def test_options_that_the_source_defines_are_refused(resnet: nn.Module, in_tmp: Path) -> None:
    torch.save(resnet.state_dict(), "w.pth")
    with pytest.raises(effssl.RequestError, match=r"w\.pth needs no weights="):
        effssl.load("w.pth", encoder="resnet18", weights="random")
    with pytest.raises(effssl.RequestError, match="resnet18 needs no encoder="):
        effssl.load("resnet18", encoder="resnet18", weights="random")
    with pytest.raises(effssl.RequestError, match="weights are default or random, not 'none'"):
        effssl.load("resnet18", weights="none")


@pytest.mark.parametrize(
    ("source", "encoder", "message"),
    [
        ("w.pth", "", "does not name its architecture; add encoder="),
        ("w.pth", "resnet50", "is encoder= right"),
        ("nowhere.pth", "resnet18", "no run folder or weight file"),
        ("resnet19", "", "did you mean resnet1"),
        ("text.pth", "resnet18", "is not a weight file"),
        ("empty.pth", "resnet18", "contains no state dict"),
    ],
)
def test_requests_that_are_refused(resnet: nn.Module, in_tmp: Path, source: str, encoder: str, message: str) -> None:
    torch.save(resnet.state_dict(), "w.pth")
    Path("text.pth").write_text("hello")
    torch.save({"epoch": 3}, "empty.pth")
    with pytest.raises(effssl.RequestError, match=message):
        effssl.load(source, encoder=encoder)


class _Evil:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("owned"),))


@pytest.mark.filterwarnings("error")
def test_a_file_that_would_run_code_is_refused(in_tmp: Path) -> None:
    torch.save({"state_dict": _Evil()}, "evil.pth")
    with pytest.raises(effssl.RequestError, match=r"could run code|not a weight file"):
        foreign.read_weights(Path("evil.pth"))
    Path("plain.pt").write_bytes(pickle.dumps(_Evil()))
    with pytest.raises(effssl.RequestError, match=r"could run code|not a weight file"):
        foreign.read_weights(Path("plain.pt"))
    assert not Path("owned").exists()


def test_cached_weights_of_a_library_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Evil:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "owned",))

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save({"conv1.weight": Evil()}, folder / "resnet18-f37072fd.pth")  # the name torchvision looks for
    with pytest.raises(effssl.RequestError, match="could run code"):
        effssl.load("resnet18")
    assert not (tmp_path / "owned").exists()


def test_text_files_are_refused(tmp_path: Path) -> None:
    for name in ("w.pth", "w.pt"):
        (tmp_path / name).write_text("not weights")
        with pytest.raises(effssl.RequestError, match="weight file: neither safetensors nor"):
            effssl.load(tmp_path / name, encoder="resnet18")
