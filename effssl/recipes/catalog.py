"""The recipes that come with the package: list them, read one, choose one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from effssl.objectives.options import base_term
from effssl.runtime.errors import RequestError, did_you_mean
from effssl.schema import read_yaml
from effssl.several import split_sets

FOLDER = Path(__file__).parent
DOCUMENT_KEYS = ("cost", "score")
"""What a recipe says about itself, for the reader."""
NAMED_SETS = ("cifar10", "cifar100")
FALLBACK = "byol"
"""A base method that was registered from outside has no recipe and takes this one's."""
SIMILAR = {"supcon": "simclr"}
"""Where a base method has no recipe for such images, it takes that of a similar one."""
EFFICIENT_WITH = "rotation"
"""With this task, a base method takes the recipe <family>-<base>-efficient where there is one."""
TRANSFORMERS = re.compile(r"timm:(vit|deit3?)_|vit_")
"""Names of transformers, timm's and torchvision's, for which the recipes <family>-<base>-vit are."""


def names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read(name: str) -> dict[str, Any]:
    """A recipe's settings, by its name or the path of a YAML file."""
    path = FOLDER / f"{name}.yaml"
    if not path.exists():
        path = Path(name)
    if not path.exists():
        raise RequestError(f"unknown recipe {name!r}{did_you_mean(name, names())}; recipes: {', '.join(names())}")
    return {key: value for key, value in read_yaml(path).items() if key not in DOCUMENT_KEYS}


def about(name: str) -> str:
    """What a recipe costs and scores, on one line."""
    values = read_yaml(FOLDER / f"{name}.yaml")
    return "; ".join(str(values[key]) for key in DOCUMENT_KEYS if key in values)


def score(name: str) -> str:
    """What a recipe reached, on one line."""
    return str(read_yaml(FOLDER / f"{name}.yaml")["score"])


def choose(data: str, terms: Iterable[str], accelerator: bool, encoder: str = "") -> str:
    """The recipe that `auto` stands for: the paper's where there is an accelerator, one for CPUs otherwise.

    The base method decides, whatever its place in the sum. With the rotation task it takes its efficient recipe. A
    transformer takes the recipe for transformers, on any device, where its base method has one.

    >>> choose("cifar10", ["byol", "rotation"], accelerator=False)
    'cpu-byol-efficient'
    >>> choose("cifar10", ["byol", "rotation"], accelerator=False, encoder="timm:vit_tiny_patch4")
    'cifar10-byol-vit'
    """
    terms, known = list(terms), set(names())
    base = base_term(terms)
    family = data if data in NAMED_SETS else "cifar10" if is_small(data) else "images"
    # Photographs never get settings for images of 32 pixels.
    last = "imagenet1k" if family == "images" else "cifar10"
    families = (family, "imagenet100", last) if accelerator else ("cpu",)
    bases = (base, SIMILAR.get(base, base))
    fitting = [f"{family}-{term}" for term in (*bases, FALLBACK) for family in families]
    if is_transformer(encoder):
        images = "images" if family == "images" else "cifar10"
        fitting = [f"{images}-{term}-vit" for term in bases] + fitting
    name = next(name for name in fitting if name in known)
    efficient = f"{name}-efficient"
    measured = EFFICIENT_WITH in terms and name.endswith(f"-{base}")  # not of the fallback
    return efficient if measured and efficient in known else name


def is_transformer(encoder: str) -> bool:
    """Whether an encoder is a plain vision transformer, by its name.

    >>> is_transformer("timm:deit_tiny_patch16_224"), is_transformer("vit_b_16"), is_transformer("timm:resnet18")
    (True, True, False)
    """
    return TRANSFORMERS.match(encoder) is not None


def is_small(data: str) -> bool:
    """Whether a data set holds small images of one size, by its name."""
    sets = [one.spec for one in split_sets(data)]
    return all(name in (*NAMED_SETS, "digits") or name.endswith((".npy", ".npz")) for name in sets)


def published_form(name: str) -> str:
    """The recipe with the published form of what an efficient recipe computes; "" for all other recipes.

    >>> published_form("cpu-byol-efficient"), published_form("cpu-byol")
    ('cpu-byol', '')
    """
    plain = name.removesuffix("-efficient")
    return plain if plain != name and plain in names() else ""
