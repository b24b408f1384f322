"""Encoders that effssl did not train: torchvision and timm models by name, and files of weights from elsewhere."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from effssl.data.decoding import RESAMPLE
from effssl.network.encoders import Encoder, build_encoder, model_names, timm_arguments
from effssl.network.loaded import LoadedEncoder, is_ours, load_encoder, ready
from effssl.network.small import small_width
from effssl.runtime.errors import RequestError, did_you_mean
from effssl.runtime.progress import say
from effssl.runtime.randomness import seeded

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FILES = (".safetensors", ".pt", ".pth", ".bin", ".tar", ".ckpt", ".torch")
DEPTH = 8  # levels of mappings in which training scripts keep weights
NAMED = 5  # names in a message; of more, the number
# The trained network comes before its slow copy.
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
        return from_file(path, encoder, image_size)[0]
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
            return ready(build_encoder(source, about["image_size"]), about)
    if small:
        raise RequestError(f"{source} has no pretrained weights; train it, or use --weights random")
    about |= preprocessing(source)
    if image_size:
        about["image_size"] = image_size
        about.pop("share", None)  # it belongs to their size
    built = build_encoder(source, about["image_size"])
    _load_pretrained(source, built, about["image_size"])
    about |= {"renormalizes": True} if source in ("googlenet", "inception_v3") else {}
    return ready(built, about)


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

            plain = name.removeprefix("timm:")
            given = timm.create_model(plain, pretrained=True, num_classes=0, **timm_arguments(plain, size))
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


@dataclass(frozen=True)
class Filled:
    """What of a file went into a network."""

    prefix: str  # of the names that were taken
    taken: int
    left: dict[str, int]  # the rest, by the part of the file that it belongs to


def from_file(path: Path, encoder: str, image_size: int = 0, prefix: str = "") -> tuple[LoadedEncoder, Filled]:
    """An encoder with the weights of a file, and what was taken from it; `prefix` chooses one of several networks."""
    if not encoder:
        raise RequestError(f"{path} does not say which network it is; add --encoder, e.g. --encoder resnet50")
    tensors = read_weights(path)
    stem = "auto"
    if encoder.startswith("resnet"):
        kernels = [w.shape[-1] for w in tensors.values() if w.ndim == 4 and w.shape[1] == 3]
        stem = "small" if kernels[:1] == [3] else "large"
    size = image_size or (32 if small_width(encoder) or stem == "small" else SIZE)
    built = build_encoder(encoder, size, stem)
    filled = fill(built.backbone, tensors, str(path), prefix)
    about = {"encoder": encoder, "image_size": size, "stem": stem, "mean": MEAN, "std": STD, "weights": path.name}
    return ready(built, about), filled


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file or of a torch file; nothing in the file can run."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(str(path), framework="pt") as file:
                return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        with path.open("rb") as file:
            if file.read(1) not in (b"P", b"\x80"):  # a zip archive, or a pickle
                raise ValueError("neither safetensors nor what torch.save writes")
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise RequestError(f"{path} is not a file of weights: {str(error).splitlines()[0]}") from None
    except Exception as error:  # the unpickler's own refusals
        if type(error).__module__.split(".")[0] not in ("pickle", "_pickle", "torch"):
            raise
        part = "classy_state_dict" if path.suffix == ".torch" else "state_dict"
        take = f"torch.save(torch.load('{path}', weights_only=False)['{part}'], 'weights.pth')"
        raise RequestError(
            f"{path} holds more than weights and is not loaded: it could run code. If you trust it, take its weights "
            f'out: python -c "import torch; {take}"'
        ) from None
    tensors = dict(_tensors(content)) if isinstance(content, Mapping) else {}
    if not tensors:
        raise RequestError(f"{path} holds no weights by name (a state dict)")
    return tensors


def _tensors(content: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """All tensors of nested mappings, by dotted names: training scripts keep weights at many places."""
    for key, value in content.items():
        if isinstance(value, Tensor):
            yield f"{prefix}{key}", value
        elif isinstance(value, Mapping) and depth < DEPTH:
            yield from _tensors(value, f"{prefix}{key}.", depth + 1)


def fill(backbone: nn.Module, tensors: dict[str, Tensor], source: str, prefix: str = "") -> Filled:
    """Load weights whose names may carry a prefix (module., encoder_q., backbone., …); all else is left out.

    Names may also be those of `nn.Sequential(*model.children())`, where a number stands for each child.
    """
    wanted = backbone.state_dict()
    numbers = {name: str(i) for i, (name, _) in enumerate(backbone.named_children())}
    numbered = {
        key: ".".join([numbers.get(first, first), *rest]) for key in wanted for first, *rest in [key.split(".")]
    }
    found: dict[str, dict[str, str]] = {}  # prefix: our names and theirs
    for theirs in ({key: key for key in wanted}, numbered):
        some = next(iter(theirs.values()))
        for one in {key.removesuffix(some) for key in tensors if key.endswith(some)}:
            names = {key: f"{one}{name}" for key, name in theirs.items() if f"{one}{name}" in tensors}
            if one.startswith(prefix) and len(names) > len(found.get(one, {})):
                found[one] = names
    if prefix and not found:
        raise RequestError(f"{source} has no weights of this network whose names begin with {prefix}")

    def fits(one: str) -> tuple[int, int]:
        """How many weights are found, then whether it is the trained network or the slow copy of one."""
        return len(found[one]), bool(TRAINED.search(one)) - bool(COPY.search(one))

    best = max(sorted(found), key=fits, default="")
    names = found.get(best, {})
    others = [one for one in sorted(found) if one != best and len(found[one]) == len(names)]
    if others:
        say(f"{source} holds {1 + len(others)} such networks; taken: {best or 'no prefix'}, not {', '.join(others)}")
    missing = [key for key in wanted if key not in names and not key.endswith("num_batches_tracked")]
    if missing:
        shown = ", ".join(missing[:NAMED]) + (" …" if len(missing) > NAMED else "")
        raise RequestError(
            f"{source} lacks {len(missing)} of the {len(wanted)} weights of this network: {shown}; is --encoder right?"
        )
    for key, name in names.items():
        if tensors[name].shape != wanted[key].shape:
            raise RequestError(
                f"{source}: {key} has shape {tuple(tensors[name].shape)}, this network wants "
                f"{tuple(wanted[key].shape)}; is --encoder (or --image-size) right?"
            )
    backbone.load_state_dict({key: tensors[name] for key, name in names.items()}, strict=False)
    left = Counter(_part(name, best) for name in tensors.keys() - set(names.values()))
    return Filled(best, len(names), dict(sorted(left.items())))


def _part(name: str, prefix: str) -> str:
    """The part of a file that a name belongs to: as much of it as leads away from what was taken.

    >>> _part("module.encoder_k.layer1.0.bn1.weight", "module.encoder_q.")
    'module.encoder_k'
    """
    parts, taken = name.split("."), prefix.split(".")[:-1]
    shared = next((i for i, (a, b) in enumerate(zip(parts, taken, strict=False)) if a != b), len(taken))
    return ".".join(parts[: shared + 1])
