"""Encoder files that are damaged, or whose weights cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save, save_file

import effssl
from effssl.exporting.importing import import_encoder
from effssl.network.encoders import build_encoder
from effssl.network.loaded import dump_encoder, load_encoder
from effssl.runtime.errors import RequestError, RunFailed

ABOUT: dict[str, Any] = {"encoder": "tiny", "image_size": 16, "stem": "auto", "mean": [0.5] * 3, "std": [0.25] * 3}


@pytest.fixture(scope="module")
def content() -> bytes:
    torch.manual_seed(0)
    return dump_encoder(build_encoder("tiny", 16), ABOUT)


@pytest.mark.parametrize("where", [0.3, 0.6, 0.99])
def test_a_flipped_bit_is_noticed(content: bytes, where: float, tmp_path: Path) -> None:
    (tmp_path / "e.safetensors").write_bytes(content)
    assert load_encoder(tmp_path / "e.safetensors").dim
    damaged = bytearray(content)
    damaged[int(where * len(damaged))] ^= 1
    (tmp_path / "e.safetensors").write_bytes(damaged)
    with pytest.raises(RequestError, match=r"damaged|not finite"):
        load_encoder(tmp_path / "e.safetensors")


def test_a_file_without_digest_is_read_and_one_without_finite_weights_is_not(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "e.safetensors"
    path.write_bytes(content)
    with safe_open(str(path), framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    path.write_bytes(save(tensors, metadata={"effssl": json.dumps(ABOUT)}))  # as before there were digests
    assert load_encoder(path).dim
    key = next(key for key in tensors if key.endswith("weight"))
    tensors[key].view(-1)[0] = float("nan")
    path.write_bytes(save(tensors, metadata={"effssl": json.dumps(ABOUT)}))
    with pytest.raises(RequestError, match="not finite"):
        effssl.load(path)


ODD = [[], 3, {}, ABOUT | {"encoder": 5}, ABOUT | {"image_size": "16"}, ABOUT | {"image_size": 10**9}]
ODD += [
    ABOUT | {"image_size": 0},
    ABOUT | {"mean": [0.5]},
    ABOUT | {"std": [0.0] * 3},
    ABOUT | {"std": [float("nan")] * 3},
]
ODD += [ABOUT | {"image_size": 16000}, ABOUT | {"stem": "other"}]
ODD += [ABOUT | {"filter": "x"}, ABOUT | {"share": -1}, ABOUT | {"stem": 1}, ABOUT | {"encoder": "resnet18"}]
ODD += [{key: value for key, value in ABOUT.items() if key != missing} for missing in ABOUT]


@pytest.mark.parametrize("about", ODD, ids=range(len(ODD)))
def test_a_description_that_is_none(about: Any, tmp_path: Path) -> None:
    tensors = build_encoder("tiny", 16).backbone.state_dict()
    (tmp_path / "e.safetensors").write_bytes(save(tensors, metadata={"effssl": json.dumps(about)}))
    with pytest.raises(RequestError, match=r"e\.safetensors"):
        load_encoder(tmp_path / "e.safetensors")


def test_features_that_are_not_finite_have_no_score() -> None:
    encoder = effssl.load("tiny", weights="random", image_size=8)
    next(iter(encoder.encoder.backbone.parameters())).fill_(float("inf"))
    with pytest.raises(RunFailed, match="not finite"):
        effssl.evaluate("knn", encoder, effssl.open_data("digits"))


def test_imports_that_cannot_be_used(in_tmp: Path) -> None:
    state = build_encoder("tiny", 16).backbone.state_dict()
    key = next(key for key in state if key.endswith("weight"))
    for value in (
        torch.full_like(state[key], float("nan")),
        state[key] * 1j,
        state[key].to_sparse(),
        state[key].to("meta"),
    ):
        torch.save(state | {key: value}, "w.pth")
        with pytest.raises(RequestError, match=r"not finite|not a plain tensor|not a weight file"):
            import_encoder("w.pth", "tiny", "e.safetensors", image_size=16)
    Path("w.pth").write_bytes(b"\x80")
    with pytest.raises(RequestError, match="not a weight file"):
        import_encoder("w.pth", "tiny", "e.safetensors")
    save_file(state, "w.safetensors")
    for wrong in ({"std": (float("nan"),) * 3}, {"mean": (float("inf"),) * 3}, {"std": (0.0, 1.0, 1.0)}):
        with pytest.raises(RequestError, match="must be finite"):
            import_encoder("w.safetensors", "tiny", "e.safetensors", **wrong)
    assert not Path("e.safetensors").exists()


def test_a_network_with_layers_called_classifier_is_saved_and_loaded(tmp_path: Path) -> None:
    encoder = build_encoder("mobilenet_v3_small", 32)  # it keeps the first layer of its classifier
    assert any(key.startswith("classifier.") for key in encoder.backbone.state_dict())
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(dump_encoder(encoder, ABOUT | {"encoder": "mobilenet_v3_small", "image_size": 32}))
    assert load_encoder(path).dim == encoder.dim


def test_weights_that_are_finite_in_double_precision_only(in_tmp: Path) -> None:
    state = build_encoder("tiny", 16).backbone.state_dict()
    huge = {key: value.double() * 1e300 if value.is_floating_point() else value for key, value in state.items()}
    torch.save(huge, in_tmp / "w.pth")
    with pytest.raises(RequestError, match="not finite"):
        import_encoder("w.pth", "tiny", "out.safetensors")
    assert not (in_tmp / "out.safetensors").exists()


def test_images_too_large_for_any_encoder(in_tmp: Path) -> None:
    with pytest.raises(RequestError, match="between 0 and 2048"):
        effssl.load("tiny", weights="random", image_size=16000)
    torch.save(build_encoder("tiny", 16).backbone.state_dict(), in_tmp / "w.pth")
    with pytest.raises(RequestError, match="between 0 and 2048"):
        import_encoder("w.pth", "tiny", "out.safetensors", image_size=16000)
