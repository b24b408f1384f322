"""Encoders that effssl did not train: torchvision and timm models by name, and files of weights from elsewhere."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from effssl.data.decoding import RESAMPLE
from effssl.errors import RequestError, did_you_mean
from effssl.network.encoders import Encoder, build_encoder, model_names
from effssl.network.loaded import LoadedEncoder, is_ours, load_encoder
from effssl.network.small import small_width
from effssl.progress import say
from effssl.randomness import seeded

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FILES = (".safetensors", ".pt", ".pth", ".bin", ".tar", ".ckpt")
# Where training scripts keep weights; the trained network before its slow copy.
NESTED = ("state_dict", "model", "model_state_dict", "online_network_state_dict", "student", "teacher")
TRAINED = re.compile(r"(^|[._])(q|query|online|student|base)([._]|$)")
COPY = re.compile(r"(^|[._])(k|key|teacher|momentum|target|ema)([._]|$)")
SIZE = 224
SEED = 0  # of random weights


def open_foreign(source: str, encoder: str = "", weights: str = "default", image_size: int = 0) -> LoadedEncoder:
    """An encoder by a file of weights or by a model's name; frozen, in eval mode."""
    path = Path(source).expanduser()
    if weights not in ("default", "random"):
        raise RequestError(f"weights are default or random, not {weights!r}")
    if image_size < 0:
        raise RequestError(f"image_size is {image_size}; it must be at least 0")
    if path.is_file():
        if is_ours(path):
            refuse_flags(source, encoder=encoder, weights=weights, image_size=image_size)
            return load_encoder(path)
        refuse_flags(source, weights=weights)
        return _from_file(path, encoder, image_size)
    if path.suffix in FILES or "/" in source:
        raise RequestError(f"no run folder or weight file at {source}")
    small = bool(small_width(source))
    if not (small or source.startswith("timm:")) and source not in (known := model_names()):
        near = did_you_mean(source, known)
        raise RequestError(f"no run folder, weight file or torchvision model named {source!r}{near}")
    refuse_flags(source, encoder=encoder)
    about: dict[str, Any] = {"encoder": source, "stem": "auto", "mean": MEAN, "std": STD, "weights": weights}
    if weights == "random":
        about |= {"image_size": image_size or (32 if small else SIZE), "seed": SEED}
        with seeded(SEED, "random weights"):
            return _ready(build_encoder(source, about["image_size"]), about)
    if small:
        raise RequestError(f"{source} has no pretrained weights; train it, or use --weights random")
    about |= preprocessing(source)
    if image_size:
        about["image_size"] = image_size
        about.pop("share", None)  # it belongs to their size
    built = build_encoder(source, about["image_size"])
    _load_pretrained(source, built, about["image_size"])
    return _ready(built, about)


def refuse_flags(source: str, encoder: str = "", weights: str = "default", image_size: int = 0) -> None:
    """Flags that mean nothing for what is given would be silently ignored."""
    said = {"--encoder": bool(encoder), "--weights": weights != "default", "--image-size": bool(image_size)}
    flags = [flag for flag, given in said.items() if given]
    if flags:
        raise RequestError(f"{source} needs no {' and '.join(flags)}: it says so itself")


def preprocessing(name: str) -> dict[str, Any]:
    """What the pretrained weights of a model want to see: size, share of the shorter side, filter, mean and std."""
    if name.startswith("timm:"):
        try:
            import timm
        except ImportError:
            return {"image_size": SIZE}  # building it says what is missing
        known = timm.get_pretrained_cfg(name.removeprefix("timm:"))
        config = timm.data.resolve_data_config({}, pretrained_cfg=known.to_dict() if known else {})
        size, share, filter = config["input_size"][-1], config["crop_pct"], config["interpolation"]
        mean, std = config["mean"], config["std"]
    else:
        from torchvision import models

        preset = models.get_model_weights(name)["DEFAULT"].transforms()
        size, share, filter = preset.crop_size[0], preset.crop_size[0] / preset.resize_size[0], preset.interpolation
        mean, std, filter = preset.mean, preset.std, filter.value
    return {
        "image_size": size, "share": share, "filter": filter if filter in RESAMPLE else "bilinear",
        "mean": tuple(mean), "std": tuple(std),
    }  # fmt: skip


def _load_pretrained(name: str, built: Encoder, size: int) -> None:
    """Load a library's own weights into a model made by name."""
    try:
        if name.startswith("timm:"):
            import timm

            sizes: dict[str, Any] = {"img_size": size} if "vit" in name else {}
            given = timm.create_model(name.removeprefix("timm:"), pretrained=True, num_classes=0, **sizes)
            state = given.state_dict()
        else:
            from torchvision import models

            # Not by the model's constructor, which would unpickle whatever lies in the cache under that name.
            known = models.get_model_weights(name)["DEFAULT"]
            state = known.get_state_dict(progress=True, check_hash=True, weights_only=True)
    except pickle.UnpicklingError:
        raise RequestError(f"the cached weights of {name} hold more than weights: they could run code") from None
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RequestError(
            f"the pretrained weights of {name} cannot be had ({reason}); give a weight file with --encoder {name}, "
            "or use --weights random"
        ) from None
    fill(built.backbone, state, name)
    if name in ("googlenet", "inception_v3"):  # with these weights they renormalize by themselves
        built.backbone.transform_input = True  # type: ignore[assignment]


def _from_file(path: Path, encoder: str, image_size: int) -> LoadedEncoder:
    if not encoder:
        raise RequestError(f"{path} does not say which network it is; add --encoder, e.g. --encoder resnet50")
    tensors = read_weights(path)
    stem = "auto"
    if encoder.startswith("resnet"):
        kernels = [w.shape[-1] for key, w in tensors.items() if key.endswith("conv1.weight") and w.shape[1] == 3]
        stem = "small" if kernels[:1] == [3] else "large"
    size = image_size or (32 if small_width(encoder) or stem == "small" else SIZE)
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

    def fits(prefix: str) -> tuple[int, int]:
        """How many weights are found, then whether it is the trained network or the slow copy of one."""
        found = sum(f"{prefix}{key}" in tensors for key in wanted)
        return found, bool(TRAINED.search(prefix)) - bool(COPY.search(prefix))

    some = next(iter(wanted))
    prefixes = sorted({key.removesuffix(some) for key in tensors if key.endswith(some)} | {""})
    prefix = max(prefixes, key=fits)
    others = [other for other in prefixes if other != prefix and fits(other)[0] == fits(prefix)[0]]
    if others and fits(prefix)[0]:
        say(f"{source} holds {1 + len(others)} such networks; taken: {prefix or 'no prefix'}, not {', '.join(others)}")
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
