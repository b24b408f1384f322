"""Encoders that effssl did not train: torchvision and timm models by name, and files of weights from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from effssl.errors import RequestError, did_you_mean
from effssl.network.encoders import Encoder, build_encoder, model_names
from effssl.network.loaded import LoadedEncoder, is_ours, load_encoder

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FILES = (".safetensors", ".pt", ".pth", ".bin", ".tar", ".ckpt")
NESTED = ("state_dict", "model", "model_state_dict", "student", "teacher")  # where training scripts keep weights
SIZE = 224


def open_foreign(source: str, encoder: str = "", weights: str = "default", image_size: int = 0) -> LoadedEncoder:
    """An encoder by a file of weights or by a model's name; frozen, in eval mode."""
    path = Path(source).expanduser()
    if path.is_file():
        if is_ours(path):
            return load_encoder(path)
        return _from_file(path, encoder, image_size)
    if path.suffix in FILES or "/" in source:
        raise RequestError(f"no run folder or weight file at {source}")
    if not source.startswith("timm:") and source not in (known := model_names()):
        near = did_you_mean(source, known)
        raise RequestError(f"no run folder, weight file or torchvision model named {source!r}{near}")
    size = image_size or (32 if source == "small" else SIZE)
    about: dict[str, Any] = {"encoder": source, "image_size": size, "stem": "auto", "mean": MEAN, "std": STD}
    built = build_encoder(source, size)
    if weights == "default":
        about |= _pretrained(source, built, size)
    return _ready(built, about | {"weights": weights})


def _pretrained(name: str, built: Encoder, size: int) -> dict[str, Any]:
    """Load a library's own weights into a model made by name; what they say about preprocessing."""
    try:
        if name == "small":
            raise RequestError("small has no pretrained weights; train it, or use --weights random")
        if name.startswith("timm:"):
            import timm

            given = timm.create_model(name.removeprefix("timm:"), pretrained=True, num_classes=0)
            config = timm.data.resolve_data_config({}, model=given)
            fill(built.backbone, given.state_dict(), name)
            return {"mean": config["mean"], "std": config["std"]}
        from torchvision import models

        given = models.get_model(name, weights="DEFAULT")
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RequestError(
            f"the pretrained weights of {name} cannot be had ({reason}); give a weight file with --encoder {name}, "
            "or use --weights random"
        ) from None
    fill(built.backbone, given.state_dict(), name)
    return {}


def _from_file(path: Path, encoder: str, image_size: int) -> LoadedEncoder:
    if not encoder:
        raise RequestError(f"{path} does not say which network it is; add --encoder, e.g. --encoder resnet50")
    tensors = read_weights(path)
    stem = "auto"
    if encoder.startswith("resnet"):
        kernels = [w.shape[-1] for key, w in tensors.items() if key.endswith("conv1.weight") and w.shape[1] == 3]
        stem = "small" if kernels[:1] == [3] else "large"
    size = image_size or (32 if encoder == "small" or stem == "small" else SIZE)
    built = build_encoder(encoder, size, stem)
    fill(built.backbone, tensors, str(path))
    about = {"encoder": encoder, "image_size": size, "stem": stem, "mean": MEAN, "std": STD, "weights": path.name}
    return _ready(built, about)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file or of a torch file; nothing in the file can run."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(str(path), framework="pt") as file:
                return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise RequestError(f"{path} is not a file of weights: {str(error).splitlines()[0]}") from None
    except Exception as error:  # the unpickler's own refusals
        if type(error).__module__.split(".")[0] not in ("pickle", "_pickle", "torch"):
            raise
        raise RequestError(f"{path} holds more than weights and is not loaded: it could run code") from None
    while isinstance(content, dict):
        inner = next((content[key] for key in NESTED if isinstance(content.get(key), dict)), None)
        if inner is None:
            break
        content = inner
    tensors = {str(k): v for k, v in content.items() if isinstance(v, Tensor)} if isinstance(content, dict) else {}
    if not tensors:
        raise RequestError(f"{path} holds no weights by name (a state dict)")
    return tensors


def fill(backbone: nn.Module, tensors: dict[str, Tensor], source: str) -> None:
    """Load weights whose names may carry a prefix (module., encoder_q., backbone., …); classifiers are left out."""
    wanted = backbone.state_dict()

    def fits(prefix: str) -> int:
        return sum(f"{prefix}{key}" in tensors for key in wanted)

    some = next(iter(wanted))
    prefixes = {key.removesuffix(some) for key in tensors if key.endswith(some)} | {""}
    prefix = max(sorted(prefixes), key=fits)
    missing = [key for key in wanted if f"{prefix}{key}" not in tensors and not key.endswith("num_batches_tracked")]
    if missing:
        raise RequestError(
            f"{source} lacks {len(missing)} of the {len(wanted)} weights of this network, e.g. {missing[0]}; "
            "is --encoder right?"
        )
    chosen = {key: tensors[f"{prefix}{key}"] for key in wanted if f"{prefix}{key}" in tensors}
    for key, value in chosen.items():
        if value.shape != wanted[key].shape:
            raise RequestError(
                f"{source}: {key} has shape {tuple(value.shape)}, this network wants {tuple(wanted[key].shape)}; "
                "is --encoder (or --image-size) right?"
            )
    backbone.load_state_dict(chosen, strict=False)


def _ready(encoder: Encoder, about: dict[str, Any]) -> LoadedEncoder:
    loaded = LoadedEncoder(encoder, about).requires_grad_(False)
    return loaded.to(memory_format=torch.channels_last).eval()
