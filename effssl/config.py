"""Everything a run can be told, as frozen dataclasses; YAML in and out; unknown keys and wrong types are errors.

A field of `Config` is a flag of `effssl pretrain` and a key of `config.yaml`: `--rotation.size 16` is

    rotation: {size: 16}

Values come from these defaults, then the recipe, then `--config FILE`, then flags. This module does not import torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from effssl.objectives.options import BYOL, OWN, Jigsaw, MoCo, Rotation, SimCLR, SimSiam, SupCon, Supervised, SwAV
from effssl.runtime.errors import RequestError, did_you_mean

# ---------------------------------------------------------------------------------------------------------------
# The network and how it is optimized


@dataclass(frozen=True)
class Projector:
    """The projection head g: `layers` linear layers, d → hidden → … → out, ReLU between them."""

    layers: int = 2
    """number of linear layers; 0 means z = h"""
    hidden: int = 512
    """width of the hidden layers"""
    out: int = 128
    """width of z"""
    norm: bool = True
    """batch norm after each hidden layer"""
    output_norm: bool = False
    """batch norm after the last layer too"""


@dataclass(frozen=True)
class Optimizer:
    """The optimizer of all weights: those of the network and those of the terms."""

    name: Literal["sgd", "lars"] = "sgd"
    """sgd decays all parameters; lars leaves biases and norms out of adaptation and decay"""
    momentum: float = 0.9
    weight_decay: float = 1e-4
    nesterov: bool = False
    trust: float = 0.001
    """lars: step length as a share of the weight's length (η)"""
    trust_clip: bool = False
    """lars: never step further than plain SGD would"""
    clip_norm: float = 0.0
    """clip the gradient to this length; 0 is off"""


@dataclass(frozen=True)
class Schedule:
    """Learning rate over the run: linear warm-up, then cosine, per step."""

    warmup_epochs: float = 10.0
    """at most a tenth of a run that `--epochs` made shorter than its recipe"""
    warmup_from: float = 0.0
    """learning rate of the first step, as a share of lr"""
    final: float = 0.0
    """learning rate after the last step, as a share of lr"""
    steps: tuple[float, ...] = ()
    """shares of the run after which lr is multiplied by step_factor, in place of the cosine"""
    step_factor: float = 0.2
    grow_from: float = 1.0
    """side of the first views as a share of the image size; views then grow with the run, and early steps are cheap"""
    grow_until: float = 0.5
    """share of the run after which views have their full size"""
    grow: Literal["steadily", "at_once"] = "steadily"
    """in steps of four pixels up to that point, or all at once there"""


@dataclass(frozen=True)
class Augment:
    """How one view is made from an image. Two values in `blur` or `solarize` mean: first view, second view."""

    scale: tuple[float, float] = (0.2, 1.0)
    """share of the image's area that a crop covers"""
    ratio: tuple[float, float] = (0.75, 4 / 3)
    """width over height of a crop"""
    filter: Literal["bilinear", "bicubic"] = "bilinear"
    flip: float = 0.5
    """probability of a horizontal flip"""
    jitter: float = 0.8
    """probability of the color jitter"""
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    gray: float = 0.2
    """probability of losing all color"""
    blur: tuple[float, ...] = (0.0,)
    """probability of a Gaussian blur, for all views or per view"""
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    blur_kernel: int = 0
    """width of the blur kernel in pixels, odd; 0 is a tenth of the image size"""
    solarize: tuple[float, ...] = (0.0,)
    """probability of inverting bright pixels, for all views or per view"""
    solarize_threshold: float = 0.5
    saliency: str = ""
    """file of saliency maps (effssl saliency); crops then cover more saliency than the image has on average"""
    saliency_share: float = 1.0
    """share of samples whose crops are chosen by saliency"""
    saliency_by: Literal["sample", "crop", "image"] = "sample"
    """drawn for all views of a sample at once, for each crop, or once for each image"""
    pad: int = 0
    """move the whole image by up to so many pixels over a black border, in place of a resized crop"""
    rotate: bool = False
    """turn every view by a random number of quarter turns"""
    small: int = 0
    """small crops per image (multi-crop), for terms that use them"""
    small_size: int = 96
    small_scale: tuple[float, float] = (0.05, 0.14)
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Health:
    """What is measured while training, on a fixed validation split cut from the training labels."""

    every: int = 0
    """epochs between two looks; 0 is about ten looks per run"""
    bank: int = 10_000
    """at most so many training images are neighbors"""
    queries: int = 5_000
    """at most so many validation images are classified"""
    snr: bool = False
    """log the gradient's signal-to-noise ratio"""
    snr_beta: float = 0.99
    """memory of its running averages"""


# ---------------------------------------------------------------------------------------------------------------
# A run


@dataclass(frozen=True)
class Config:
    """One pretraining run, fully described."""

    data: str = ""
    """cifar10, cifar100, digits, a folder of images, or a .npy/.npz file"""
    objective: str = "byol+rotation"
    """a weighted sum of terms, e.g. byol+rotation or "simsiam + 0.2*rotation" """
    encoder: str = "small"
    """small, tiny, small-32 (wider), resnet18, resnet50, any torchvision classifier, or timm:<name>"""
    recipe: str = "auto"
    """a recipe's name or a YAML file; auto looks at the data, the objective and the machine"""
    form: Literal["efficient", "paper"] = "efficient"
    """how rotation joins a base method: for the most gain at its cost (`efficient` in a recipe), or as published"""
    epochs: int = 100
    budget: str = ""
    """time for the run, e.g. 10m or 2h; it then chooses epochs, image size and the form of rotation itself"""
    batch_size: int = 128
    """images per step"""
    image_size: int = 0
    """side of a view in pixels; 0 is the size of small images, 64 for a folder of photographs"""
    lr: float = 0.1
    """peak learning rate; a recipe's holds for its batch size and is scaled with it, a given one is not"""
    seed: int = 0
    device: str = "auto"
    """auto, cpu, cuda, mps"""
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    compile: bool = False
    """let torch compile the encoder and the color changes: the first steps take a minute, later ones less time"""
    workers: int = -1
    """processes that decode images of a folder; −1 is one per core"""
    labels: Literal["auto", "folders", "none"] = "auto"
    """sub-folders are labels: auto only in a train/–val/ or train/–test/ layout"""
    classes: str = ""
    """read only these class folders: imagenet100, or a text file with their names"""
    subset: int = 0
    """use a fixed random subset of so many training images; 0 is all"""
    stem: Literal["auto", "small", "large"] = "auto"
    """ResNet's first layers: small is 3×3 without pooling (auto up to 64 pixels), large is 7×7 with pooling"""
    joint_pass: bool = False
    """both views go through the network in one pass and share batch norm statistics"""
    checkpoint_every: int = 0
    """steps between checkpoints; 0 is once an epoch"""
    accumulate: int = 1
    """compute a batch in so many parts, one after another, to save memory; batch norm, and terms that compare images,
    then see one part at a time"""
    projector: Projector = field(default_factory=Projector)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    augment: Augment = field(default_factory=Augment)
    health: Health = field(default_factory=Health)
    simclr: SimCLR = field(default_factory=SimCLR)
    byol: BYOL = field(default_factory=BYOL)
    simsiam: SimSiam = field(default_factory=SimSiam)
    swav: SwAV = field(default_factory=SwAV)
    moco: MoCo = field(default_factory=MoCo)
    supcon: SupCon = field(default_factory=SupCon)
    supervised: Supervised = field(default_factory=Supervised)
    rotation: Rotation = field(default_factory=Rotation)
    jigsaw: Jigsaw = field(default_factory=Jigsaw)


def config_type() -> type[Config]:
    """`Config`, with a field for each term that was registered from outside."""
    taken = {item.name for item in dataclasses.fields(Config)} & set(OWN)
    if taken:
        raise RequestError(f"a term cannot be called {', '.join(taken)}: that is a setting's name")
    own = [(name, term.Options, field(default_factory=term.Options)) for name, term in OWN.items()]
    return dataclasses.make_dataclass("Config", own, bases=(Config,), frozen=True) if own else Config


MACHINE_FIELDS = frozenset({"device", "workers", "checkpoint_every"})
"""Fields that a resumed run may change: they say how a run is carried out, not what it computes."""


# ---------------------------------------------------------------------------------------------------------------
# Mappings and YAML

T = TypeVar("T")


def build(cls: type[T], values: Mapping[str, Any], where: str, base: T | None = None) -> T:
    """Make a (nested) dataclass from a mapping, over `base`; `where` names the source in error messages."""
    hints = typing.get_type_hints(cls)
    changes: dict[str, Any] = {}
    for key, value in values.items():
        key = str(key)
        if key not in hints:
            raise RequestError(f"{where}: unknown key {key!r}{did_you_mean(key, hints)}; known: {', '.join(hints)}")
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise RequestError(f"{where}: {key} holds several values, got {value!r}")
            inner = getattr(base, key) if base is not None else None
            changes[key] = build(typing.cast(type, hints[key]), value, f"{where}: {key}", inner)
        else:
            changes[key] = _convert(value, hints[key], f"{where}: {key}")
    return dataclasses.replace(base, **changes) if base is not None else cls(**changes)  # type: ignore[type-var]


def _convert(value: Any, hint: Any, where: str) -> Any:
    """Check one value against its type; whole numbers become floats and lists become tuples."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        choices = typing.get_args(hint)
        if value in choices:
            return value
        raise RequestError(f"{where} is {value!r}; choose one of {', '.join(map(str, choices))}")
    if origin is tuple:
        inner = typing.get_args(hint)
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        if inner[-1] is Ellipsis:
            return tuple(_convert(item, inner[0], where) for item in items)
        if len(items) != len(inner):
            raise RequestError(f"{where} takes {len(inner)} values, got {value!r}")
        return tuple(_convert(item, one, where) for item, one in zip(items, inner, strict=True))
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        raise RequestError(f"{where} takes a value of type {getattr(hint, '__name__', hint)}, got {value!r}")
    return value


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings, the second over the first."""
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        merged[key] = merge(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return merged


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The other way round than `flatten`.

    >>> nest({"lr": 0.1, "rotation.weight": 0.4})
    {'lr': 0.1, 'rotation': {'weight': 0.4}}
    """
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        inner = nested
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return nested


def digest(config: Any) -> str:
    """A short name for a complete config: what has the same settings has the same name."""
    values = {key: value for key, value in to_dict(config).items() if key != "form"}  # which only fills in others
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def to_dict(config: Any) -> dict[str, Any]:
    """A plain nested mapping, with lists for tuples, that YAML and JSON can hold."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value

    return plain(dataclasses.asdict(config))


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: `on` is a word, not true, 1e-4 is a number, and a key stands once."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """What SafeLoader does, but where a key stands twice it does not quietly take the last one."""
        names = [key.value for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                raise yaml.YAMLError(f"{name!r} stands there twice")
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":float"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|True|false|False)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


def written_by(values: dict[str, Any]) -> str:
    """Take the versions out of a config file's values; a hint if a newer effssl wrote it."""
    from effssl import __version__

    versions = values.pop("versions", None)
    theirs = str(versions.get("effssl", "")) if isinstance(versions, dict) else ""
    numbers = [[int(n) for n in re.findall(r"\d+", text)] for text in (theirs, __version__)]
    return f" (written by effssl {theirs}, which is newer than this {__version__})" if numbers[0] > numbers[1] else ""


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise RequestError(f"no such file: {path}") from None
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise RequestError(f"{path} is not readable as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise RequestError(f"{path} does not hold 'key: value' lines")
    return values


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names.

    >>> flatten({"rotation": {"on": "z"}, "lr": 0.1})
    {'rotation.on': 'z', 'lr': 0.1}
    """
    out: dict[str, Any] = {}
    for key, value in values.items():
        out |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return out


def differences(old: Config, new: Config) -> list[str]:
    """What differs between two configs and matters for the result, one line each."""
    a, b = flatten(to_dict(old)), flatten(to_dict(new))
    equal = MACHINE_FIELDS | {"form"}  # which only fills in others
    return [f"{key}: {a[key]} → {b[key]}" for key in a if key not in equal and a[key] != b[key]]
