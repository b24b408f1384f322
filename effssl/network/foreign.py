"""Encoders trained elsewhere: torchvision and timm models by name, and weight files of other projects."""

from __future__ import annotations

import logging
import pickle
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from effssl.data.decoding import RESAMPLE
from effssl.network.adapt import adapt
from effssl.network.encoders import Encoder, build_encoder, check_timm_name, model_names, timm_arguments, timm_name
from effssl.network.loaded import LoadedEncoder, check_weights, freeze, is_encoder_file, load_encoder
from effssl.network.options import LARGEST_SIDE, patch_filters, pixels_side
from effssl.network.small import small_width
from effssl.runtime.errors import RequestError, did_you_mean
from effssl.runtime.progress import say
from effssl.runtime.randomness import seeded
from effssl.runtime.reading import check_regular, check_weight_archive, describe

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FILES = (".safetensors", ".pt", ".pth", ".bin", ".tar", ".ckpt", ".torch")
DEPTH = 8  # nested mappings in which training scripts store weights
SHOWN = 5  # names listed in an error message
# The trained network is preferred to its momentum copy.
TRAINED = re.compile(r"(^|[._])(q|query|online|student|base)([._]|$)")
COPY = re.compile(r"(^|[._])(k|key|teacher|momentum|target|ema)([._]|$)")
CLASSIFIER = re.compile(r"(^|\.)(fc|classifier(\.\d+)?|head(\.fc)?|heads\.head)\.weight$")
SIZE = 224
TORCHVISION = "torchvision:"  # may stand before the name of one of its models
SEED = 0  # of random weights
FETCHING = "fetching the pretrained weights of {name}"
HUB_FILES = ("model.safetensors", "pytorch_model.bin")  # under which timm's weights are cached
HUB_TIMEOUT = 10  # seconds
DAMAGED = (
    SafetensorError, OSError, RuntimeError, ValueError, EOFError, LookupError, TypeError, AttributeError,
)  # fmt: skip
"""What readers of weight files raise, beside errors of the restricted unpickler."""


class LoadOptions(TypedDict, total=False):
    """Keywords of `effssl.load`, for functions that pass them on."""

    encoder: str  # architecture of a weight file that does not name it
    weights: str  # of a model given by name: "default" or "random"
    image_size: int
    whiten: str  # off: h itself, of an encoder whose features are whitened


def open_foreign(source: str, encoder: str = "", weights: str = "default", image_size: int = 0) -> LoadedEncoder:
    """Load an encoder from a weight file or by the name of a model; frozen and in eval mode."""
    path = Path(source).expanduser()
    source = source.removeprefix(TORCHVISION)
    about: dict[str, Any]
    if weights not in ("default", "random"):
        raise RequestError(f"weights are default or random, not {weights!r}")
    if not 0 <= image_size <= LARGEST_SIDE:
        raise RequestError(f"image_size is {image_size}; it must be between 0 and {LARGEST_SIDE}")
    if path.is_file():
        if is_encoder_file(path):
            refuse_flags(source, encoder=encoder, weights=weights, image_size=image_size)
            return load_encoder(path)
        refuse_flags(source, weights=weights)
        return load_weight_file(path, encoder, image_size)[0]
    if path.suffix in FILES or "/" in source:
        raise RequestError(f"no run folder or weight file at {source}")
    if side := pixels_side(source):
        refuse_flags(source, encoder=encoder, weights=weights)
        # Pixels need no normalization but a common scale: gray has the feature 0.
        about = {
            "encoder": source,
            "stem": "auto",
            "mean": (0.5,) * 3,
            "std": (0.25,) * 3,
            "image_size": image_size or side,
        }
        return freeze(build_encoder(source, about["image_size"]), about | {"share": 1.0})
    if patch_filters(source):
        raise RequestError(f"{source} computes its filters from images: effssl pretrain --encoder {source} --data …")
    small = bool(small_width(source))
    if not (small or source.startswith("timm:")) and source not in (known := model_names()):
        near = did_you_mean(source, known)
        raise RequestError(f"no run folder, weight file or torchvision model named {source!r}{near}")
    refuse_flags(source, encoder=encoder)
    about = {"encoder": source, "stem": "auto", "mean": MEAN, "std": STD, "weights": weights}
    if weights == "random":
        about |= {"image_size": image_size or (32 if small else SIZE), "seed": SEED}
        with seeded(SEED, "random weights"):
            return freeze(build_encoder(source, about["image_size"]), about)
    if small:
        raise RequestError(f"{source} has no pretrained weights; train it, or use --weights random")
    about |= preprocessing(source)
    if image_size:
        about["image_size"] = image_size
        about.pop("share", None)  # it belongs to the size that the weights were trained with
    built = build_encoder(source, about["image_size"])
    _load_pretrained(source, built, about["image_size"])
    about |= {"renormalizes": True} if source in ("googlenet", "inception_v3") else {}
    return freeze(built, about)


def refuse_flags(source: str, encoder: str = "", weights: str = "default", image_size: int = 0) -> None:
    """Refuse options that this source defines itself, rather than ignore them."""
    given = {"--encoder": bool(encoder), "--weights": weights != "default", "--image-size": bool(image_size)}
    flags = [flag for flag, is_given in given.items() if is_given]
    if flags:
        raise RequestError(f"{source} needs no {' and '.join(flags)}: it defines that itself; leave it out")


def preprocessing(name: str) -> dict[str, Any]:
    """The test transform of a model's pretrained weights: image size, crop share, filter, mean and std."""
    if name.startswith("timm:"):
        check_timm_name(name.removeprefix("timm:"))
        import timm

        known = timm.get_pretrained_cfg(timm_name(name.removeprefix("timm:")))
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
    """Load the pretrained weights of torchvision or timm into a model built by name."""
    load_weights(built.backbone, pretrained_weights(name, size), name)


def pretrained_weights(name: str, image_size: int = SIZE, classifier: bool = False) -> dict[str, Tensor]:
    """The pretrained weights of torchvision or timm; those of torchvision always have the classifier."""
    try:
        if name.startswith("timm:"):
            import timm

            logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # one line says it all
            plain = name.removeprefix("timm:")
            head: dict[str, Any] = {} if classifier else {"num_classes": 0}
            arguments = timm_arguments(plain, image_size)
            _announce_hub(name)
            return timm.create_model(timm_name(plain), pretrained=True, **head, **arguments).state_dict()
        from torchvision import models

        # Not through the model's constructor, which would unpickle whatever the cache holds under that name.
        known = models.get_model_weights(name)["DEFAULT"]
        cached = Path(torch.hub.get_dir()) / "checkpoints" / Path(known.url).name
        if cached.exists():
            check_regular(cached)
            check_weight_archive(cached)
        else:
            say(FETCHING.format(name=name))
        return dict(known.get_state_dict(progress=True, check_hash=True, weights_only=True))
    except pickle.UnpicklingError:
        raise RequestError(
            f"the cached weights of {name} contain pickled objects that could run code; delete them and try again"
        ) from None
    except DAMAGED as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RequestError(
            f"the pretrained weights of {name} cannot be fetched here ({reason}); {_by_hand(name)}"
        ) from None


def _announce_hub(name: str) -> None:
    """Say that weights are about to be fetched; an OSError at once if the hub cannot be reached."""
    import timm

    known = timm.get_pretrained_cfg(timm_name(name.removeprefix("timm:")))
    if known is None or not known.hf_hub_id:
        return
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.utils import get_session

    if any(isinstance(try_to_load_from_cache(known.hf_hub_id, file), str) for file in HUB_FILES):
        return
    say(FETCHING.format(name=name))
    try:  # the hub's client would try again for a minute
        get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT)
    except Exception as error:  # of requests or httpx, whichever the hub's client uses
        raise OSError(f"no connection: {describe(error)}") from None


def open_classifier(source: str, width: int) -> nn.Linear | None:
    """The linear classifier in a weight file, or of a pretrained model by name; None where there is none."""
    path = Path(source).expanduser()
    tensors = (
        read_weights(path) if path.is_file() else pretrained_weights(source.removeprefix(TORCHVISION), classifier=True)
    )
    weights = [key for key, value in tensors.items() if CLASSIFIER.search(key) and value.shape[1:] == (width,)]
    names = [key.removesuffix("weight") for key in weights if f"{key.removesuffix('weight')}bias" in tensors]
    if not names:
        return None
    weight, bias = tensors[f"{names[-1]}weight"], tensors[f"{names[-1]}bias"]
    layer = nn.Linear(width, len(weight))
    layer.load_state_dict({"weight": weight.float(), "bias": bias.float()})
    return layer.requires_grad_(False)


def _by_hand(name: str) -> str:
    """What to do where a model's pretrained weights cannot be fetched: which file to put where."""
    if name.startswith("timm:"):
        import timm

        known = timm.get_pretrained_cfg(timm_name(name.removeprefix("timm:")))
        place = known and ((known.hf_hub_id and f"model.safetensors of huggingface.co/{known.hf_hub_id}") or known.url)
        return f"download {place or 'a weight file'} elsewhere and give that file with --encoder {name}"
    from torchvision import models

    url = models.get_model_weights(name)["DEFAULT"].url
    return f"put {url} into {Path(torch.hub.get_dir()) / 'checkpoints'}, or give a weight file with --encoder {name}"


@dataclass(frozen=True)
class LoadResult:
    """Which tensors of a file were loaded into a network."""

    prefix: str  # of the loaded keys
    loaded: int
    unused: dict[str, int]  # number of other tensors, by the part of the file that holds them
    adapted: tuple[str, ...] = ()  # what was done to weights of another shape


def load_weight_file(
    path: Path, encoder: str, image_size: int = 0, prefix: str = ""
) -> tuple[LoadedEncoder, LoadResult]:
    """Load an encoder from a weight file; `prefix` chooses one of several networks in it."""
    tensors = read_weights(path)
    if not encoder:
        raise RequestError(f"{path} does not name its architecture; add --encoder, e.g. --encoder resnet50")
    stem = "auto"
    if encoder.startswith("resnet"):
        kernels = [w.shape[-1] for w in tensors.values() if w.ndim == 4 and w.shape[1] == 3]
        stem = "small" if kernels[:1] == [3] else "large"
    size = image_size or (32 if small_width(encoder) or stem == "small" else SIZE)
    built = build_encoder(encoder, size, stem)
    result = load_weights(built.backbone, tensors, str(path), prefix)
    about = {"encoder": encoder, "image_size": size, "stem": stem, "mean": MEAN, "std": STD, "weights": path.name}
    return freeze(built, about), result


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors or torch file, without running any code in it."""
    try:
        check_regular(path)
        if path.suffix == ".safetensors":
            with safe_open(str(path), framework="pt") as file:
                return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        with path.open("rb") as file:
            if file.read(1) not in (b"P", b"\x80"):  # a zip archive, or a pickle
                raise ValueError("neither safetensors nor a file of torch.save")
        check_weight_archive(path)
        with warnings.catch_warnings():  # of pickles and tensors that are refused in one line
            warnings.simplefilter("ignore")
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except DAMAGED as error:
        raise RequestError(f"{path} is not a weight file: {describe(error)}") from None
    except Exception as error:  # raised by the restricted unpickler
        if type(error).__module__.split(".")[0] not in ("pickle", "_pickle", "torch"):  # struct.error, zlib.error …
            raise RequestError(f"{path} is not a weight file: {describe(error)}") from None
        part = "classy_state_dict" if path.suffix == ".torch" else "state_dict"
        take = f"torch.save(torch.load('{path}', weights_only=False)['{part}'], 'weights.pth')"
        raise RequestError(
            f"{path} contains pickled objects that could run code and is not loaded; if you trust it, extract its "
            f'weights: python -c "import torch; {take}"'
        ) from None
    tensors = dict(_tensors(content)) if isinstance(content, Mapping) else {}
    if not tensors:
        raise RequestError(f"{path} contains no state dict")
    return tensors


def _tensors(content: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """All tensors of nested mappings by dotted keys, as training scripts store weights in many places."""
    for key, value in content.items():
        if isinstance(value, Tensor):
            yield f"{prefix}{key}", value
        elif isinstance(value, Mapping) and depth < DEPTH:
            yield from _tensors(value, f"{prefix}{key}.", depth + 1)


def load_weights(
    backbone: nn.Module, tensors: dict[str, Tensor], source: str, prefix: str = "", adapting: bool = False
) -> LoadResult:
    """Load weights whose keys may have a prefix (module., encoder_q., backbone., …); other tensors are ignored.

    Keys may also be those of `nn.Sequential(*model.children())`, where a number stands for each child. With `adapting`
    a stem, input channels and position embeddings of another shape are adapted.
    """
    wanted = backbone.state_dict()
    if not wanted:
        raise RequestError(f"{source}: an encoder without weights reads no weight file")
    numbers = {name: str(i) for i, (name, _) in enumerate(backbone.named_children())}
    numbered = {
        key: ".".join([numbers.get(first, first), *rest]) for key in wanted for first, *rest in [key.split(".")]
    }
    found: dict[str, dict[str, str]] = {}  # prefix: {our key: key in the file}
    for theirs in ({key: key for key in wanted}, numbered):
        some = next(iter(theirs.values()))
        for one in {key.removesuffix(some) for key in tensors if key.endswith(some)}:
            names = {key: f"{one}{name}" for key, name in theirs.items() if f"{one}{name}" in tensors}
            if one.startswith(prefix) and len(names) > len(found.get(one, {})):
                found[one] = names
    if prefix and not found:
        raise RequestError(f"{source} has no weights of this network with the prefix {prefix}; choose another --prefix")

    def fits(one: str) -> tuple[int, int]:
        """Number of matching weights, then trained network before momentum copy."""
        return len(found[one]), bool(TRAINED.search(one)) - bool(COPY.search(one))

    best = max(sorted(found), key=fits, default="")
    names = found.get(best, {})
    others = [one for one in sorted(found) if one != best and len(found[one]) == len(names)]
    if others:
        say(f"{source} contains {1 + len(others)} such networks; loaded {best or 'no prefix'}, not {', '.join(others)}")
    missing = [key for key in wanted if key not in names and not key.endswith("num_batches_tracked")]
    if missing:
        shown = ", ".join(missing[:SHOWN]) + (" …" if len(missing) > SHOWN else "")
        raise RequestError(
            f"{source} lacks {len(missing)} of the {len(wanted)} weights of this network: {shown}; is --encoder right?"
        )
    check_weights({name: tensors[name] for name in names.values()}, source)
    state, adapted = _fitted({key: tensors[name] for key, name in names.items()}, wanted, source, adapting)
    backbone.load_state_dict(state, strict=False)
    check_weights(backbone.state_dict(), source)  # finite in double precision may be infinite here
    unused = Counter(_part(name, best) for name in tensors.keys() - set(names.values()))
    return LoadResult(best, len(names), dict(sorted(unused.items())), tuple(adapted))


def _fitted(
    state: dict[str, Tensor], wanted: dict[str, Tensor], source: str, adapting: bool
) -> tuple[dict[str, Tensor], list[str]]:
    """Weights in the shapes of a network, and what was adapted; a shape or type that does not fit is refused."""
    whole = [key for key, value in state.items() if wanted[key].is_floating_point() and not value.is_floating_point()]
    if whole:
        raise RequestError(f"{source}: {whole[0]} holds {state[whole[0]].dtype} values, as of a quantized network")
    done, first = [], next((key for key, value in wanted.items() if value.ndim == 4), "")
    for key, weight in list(state.items()):
        shape = tuple(wanted[key].shape)
        if tuple(weight.shape) == shape:
            continue
        fitted = adapt(key, weight, shape, first) if adapting else None
        if fitted is None:
            if key == first and weight.ndim == 4 and weight.shape[1] != shape[1]:
                raise RequestError(f"{source} is for images of {weight.shape[1]} channels; images here have {shape[1]}")
            raise RequestError(
                f"{source}: {key} has shape {tuple(weight.shape)}, this network needs {shape}; "
                "is --encoder (or --image-size) right?"
            )
        state[key], text = fitted
        done.append(text)
    return state, done


def _part(name: str, prefix: str) -> str:
    """The part of a file that a key belongs to: the key up to where it differs from the loaded prefix.

    >>> _part("module.encoder_k.layer1.0.bn1.weight", "module.encoder_q.")
    'module.encoder_k'
    """
    parts, loaded = name.split("."), prefix.split(".")[:-1]
    shared = next((i for i, (a, b) in enumerate(zip(parts, loaded, strict=False)) if a != b), len(loaded))
    return ".".join(parts[: shared + 1])
