"""Checkpoints of other projects become encoders with the same features as in their own library."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

import effssl
from effssl.cli import main
from effssl.network.foreign import MEAN, STD

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def small() -> nn.Module:
    """A small ResNet with torchvision's keys; large ones have the same layout."""
    return effssl.load("small", weights="random").backbone


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None).eval()
    model.fc = nn.Identity()
    return model


def named(prefix: str, state: State) -> State:
    return {f"{prefix}{key}": value for key, value in state.items()}


def other(state: State) -> State:
    return {key: torch.zeros_like(value) for key, value in state.items()}


def lightly(model: nn.Module) -> dict[str, Any]:
    numbered = nn.Sequential(*list(model.children())[:-1]).state_dict()
    heads = {"projection_head.layers.0.weight": torch.zeros(8, 128), "prediction_head.layers.0.weight": torch.ones(8)}
    state = named("backbone.", numbered) | named("backbone_momentum.", other(numbered)) | heads
    return {"state_dict": state, "epoch": 3, "optimizer_states": [{"state": {0: {"momentum_buffer": torch.ones(3)}}}]}


def solo_learn(prefix: str) -> Callable[[nn.Module], dict[str, Any]]:
    def layout(model: nn.Module) -> dict[str, Any]:
        state, heads = (
            model.state_dict(),
            {"classifier.weight": torch.ones(10, 128), "projector.0.weight": torch.ones(3)},
        )
        both = named(f"{prefix}.", state) | named(f"momentum_{prefix}.", other(state))
        return {"epoch": 1, "state_dict": both | heads, "hyper_parameters": {"lr": 0.1}}

    return layout


def vissl(model: nn.Module) -> dict[str, Any]:
    trunk = named("_feature_blocks.", model.state_dict())
    inner = {"trunk": trunk, "heads": {"0.clf.0.weight": torch.ones(128, 128)}}
    return {"iteration": 7, "classy_state_dict": {"base_model": {"model": inner, "meters": {}}, "phase_idx": 1}}


def moco(model: nn.Module) -> dict[str, Any]:
    state, queue = model.state_dict(), {"module.queue": torch.ones(3, 4), "module.queue_ptr": torch.zeros(1)}
    heads = {"module.encoder_q.fc.0.weight": torch.ones(5, 128), "module.encoder_q.fc.2.weight": torch.ones(4, 5)}
    both = named("module.encoder_q.", state) | named("module.encoder_k.", other(state))
    return {"arch": "resnet18", "state_dict": both | heads | queue}


def simsiam(model: nn.Module) -> dict[str, Any]:
    heads = {"module.encoder.fc.0.weight": torch.ones(4, 128), "module.predictor.0.weight": torch.ones(2, 4)}
    return {"state_dict": named("module.encoder.", model.state_dict()) | heads, "optimizer": {"param_groups": []}}


def swav(model: nn.Module) -> dict[str, Any]:
    heads = {"projection_head.0.weight": torch.ones(4, 128), "prototypes.weight": torch.ones(9, 4)}
    return {"state_dict": named("module.", model.state_dict() | heads)}


def dino(model: nn.Module) -> dict[str, Any]:
    state, heads = model.state_dict(), {"head.mlp.0.weight": torch.ones(4, 128)}
    teacher = named("backbone.", other(state)) | heads
    return {"student": named("module.backbone.", state) | named("module.", heads), "teacher": teacher, "epoch": 3}


LAYOUTS = {
    "lightly": (lightly, "backbone.", "state_dict.projection_head (1)"),
    "solo-learn": (solo_learn("backbone"), "backbone.", "state_dict.classifier (1)"),
    "solo-learn, older": (solo_learn("encoder"), "encoder.", "state_dict.momentum_encoder (72)"),
    "VISSL": (vissl, "trunk._feature_blocks.", "classy_state_dict.base_model.model.heads (1)"),
    "MoCo": (moco, "module.encoder_q.", "state_dict.module.encoder_q.fc (2)"),
    "SimSiam": (simsiam, "module.encoder.", "state_dict.module.predictor (1)"),
    "SwAV": (swav, "module.", "state_dict.module.prototypes (1)"),
    "DINO": (dino, "student.module.backbone.", "teacher (73)"),
}


@pytest.mark.parametrize(("layout", "encoder"), [("lightly", "resnet18"), *((layout, "small") for layout in LAYOUTS)])
def test_layouts_of_other_projects(
    layout: str,
    encoder: str,
    request: pytest.FixtureRequest,
    photos: Tensor,
    in_tmp: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    layout_of, prefix, unused = LAYOUTS[layout]
    model = request.getfixturevalue("resnet" if encoder == "resnet18" else "small")
    torch.save(layout_of(model), "theirs.ckpt")
    main(["import", "theirs.ckpt", "--encoder", encoder, "--image-size", "96", "--out", "encoder.safetensors"])
    output = capsys.readouterr()
    assert f"loaded: {len(model.state_dict())} tensors with the prefix " in output.err
    assert f"{prefix} in theirs.ckpt" in output.err
    assert unused in output.err
    assert "effssl eval knn encoder.safetensors" in output.out
    loaded = effssl.load("encoder.safetensors")
    x = (photos[:4].float() / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    with torch.no_grad():
        assert torch.allclose(loaded(photos[:4]), model(x), atol=1e-4)


def test_prefix_mean_and_std(small: nn.Module, in_tmp: Path) -> None:
    torch.save(dino(small), "theirs.pth")
    file = effssl.import_encoder(
        "theirs.pth", "small", "a.safetensors", prefix="teacher.", mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1)
    )
    encoder = effssl.load(file)
    assert float(encoder.backbone.conv1.weight.abs().sum()) == 0
    assert (encoder.size, encoder.about["mean"], encoder.about["std"]) == (32, [0.5, 0.4, 0.3], [0.2, 0.2, 0.1])
    with pytest.raises(effssl.RequestError, match=r"no weights of this network with the prefix techer\."):
        effssl.import_encoder("theirs.pth", "small", "b.safetensors", prefix="techer.")


def test_a_stem_for_small_images_is_detected(in_tmp: Path, capsys: pytest.CaptureFixture) -> None:
    model = effssl.load("resnet18", weights="random", image_size=32).backbone
    torch.save(lightly(model), "theirs.ckpt")
    encoder = effssl.load(effssl.import_encoder("theirs.ckpt", "resnet18", "a.safetensors"))
    assert encoder.size == 32
    assert torch.equal(encoder.backbone.conv1.weight, model.conv1.weight)
    assert "assumed to have padding 1" in capsys.readouterr().err


def test_missing_weights_are_named(resnet: nn.Module, in_tmp: Path) -> None:
    state = named("backbone.", resnet.state_dict())
    del state["backbone.layer3.0.bn1.bias"], state["backbone.layer4.1.conv2.weight"]
    torch.save(state, "theirs.pth")
    with pytest.raises(
        effssl.RequestError,
        match=r"lacks 2 of the 120 weights of this network: layer3.0.bn1.bias, layer4.1.conv2.weight",
    ):
        effssl.import_encoder("theirs.pth", "resnet18", "a.safetensors")
    assert not Path("a.safetensors").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["args.ckpt", "--out", "a.safetensors"], "if you trust it, extract its weights: python -c"),
        (["w.pth", "--out", "a.pth"], "the name of an encoder file ends with .safetensors"),
        (["w.pth", "--out", "there.safetensors"], "exists; choose another --out, or add --overwrite"),
        (["ours.safetensors", "--out", "a.safetensors"], "is an encoder file already"),
        (["nowhere.pth", "--out", "a.safetensors"], "no file at nowhere.pth"),
        (["whole.pth", "--out", "a.safetensors"], "conv1.weight holds torch.int8 values, as of a quantized network"),
        (["w.pth", "--out", "a.safetensors", "--std", "1", "1", "0"], "std is (1.0, 1.0, 0.0); each value must"),
    ],
)
def test_requests_that_are_refused(
    args: list[str], message: str, small: nn.Module, in_tmp: Path, capsys: pytest.CaptureFixture
) -> None:
    torch.save(small.state_dict(), "w.pth")
    torch.save({key: value.to(torch.int8) for key, value in small.state_dict().items()}, "whole.pth")
    torch.save({"state_dict": small.state_dict(), "args": argparse.Namespace(lr=1)}, "args.ckpt")
    Path("there.safetensors").write_text("mine")
    effssl.export("small", "safetensors", "ours.safetensors", weights="random")
    with pytest.raises(SystemExit) as stop:
        main(["import", *args, "--encoder", "small"])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert Path("there.safetensors").read_text() == "mine"
    assert not Path("a.safetensors").exists()


def test_the_advice_for_a_file_with_pickled_objects_works(small: nn.Module, in_tmp: Path) -> None:
    torch.save({"state_dict": small.state_dict(), "args": argparse.Namespace(lr=1)}, "args.ckpt")
    with pytest.raises(effssl.RequestError) as refused:
        effssl.import_encoder("args.ckpt", "small", "a.safetensors")
    advice = str(refused.value).split('python -c "')[1].rstrip('"')
    exec(advice, {})
    assert effssl.import_encoder("weights.pth", "small", "a.safetensors").exists()
