"""What is exported, and what the function of every target returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from effssl.features.classifier import Classifier
from effssl.network.loaded import LoadedEncoder


@dataclass(frozen=True)
class Exportable:
    """An encoder, perhaps with a classifier of its features."""

    loaded: LoadedEncoder
    classifier: Classifier | None = None
    preprocess: bool = True  # a program contains the resizing and cropping of images, too


@dataclass(frozen=True)
class ExportedFile:
    """The content of a file, and Python code for its card."""

    content: bytes
    code: list[str]  # loads the file as `model`
    takes: str  # in words
    pixels: list[str]  # from `image`, a PIL image in RGB, to `images`
    features: list[str]  # from `images` to `features`
    normalizes: bool = False  # mean and standard deviation are applied inside the file
    resizes: bool = False  # images of any size are resized inside the file
    checked: str = ""  # how its features compare with the encoder's
    test: list[str] = field(default_factory=list)  # compares its features of the reference image with those of effssl
