"""effssl export RUN --to TARGET, and effssl import FILE: encoders for other software, and from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from effssl.commands.one_line import parse_command


@dataclass(frozen=True)
class Export:
    """Write an encoder as a file for other software, with a model card beside it."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """run folder, weight file, torchvision model or timm:<name>; or a classifier of effssl classify"""
    to: Literal["torchvision", "timm", "safetensors", "onnx", "pt2"]
    """torchvision: state dict; timm: safetensors with timm's keys; safetensors: for effssl itself; onnx: graph;
    pt2: torch.export program"""
    out: str = ""
    """file to write; default: the run's name with the target's suffix, in the current folder. The card is OUT.md"""
    encoder: str = ""
    """architecture of a weight file, e.g. resnet50"""
    weights: Literal["default", "random"] = "default"
    """of a model given by name"""
    image_size: int = 0
    """of a weight file or a model given by name; 0 is its default"""
    whiten: Literal["on", "off"] = "on"
    """off leaves the whitening of a run's features out"""
    preprocess: Literal["on", "off"] = "on"
    """off: an onnx or pt2 file takes float images of the encoder's size in place of uint8 ones of any size"""
    overwrite: bool = False
    """replace existing files"""


@dataclass(frozen=True)
class Import:
    """Convert a checkpoint of lightly, solo-learn, VISSL, MoCo, SimSiam, SwAV, DINO … to an encoder file."""

    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """.pth, .ckpt, .safetensors …; only weights are read, no code in it runs"""
    encoder: str
    """its architecture: resnet50, any torchvision classifier, timm:<name>"""
    out: str
    """.safetensors file to write"""
    image_size: int = 0
    """side of the images it was trained on; 0 is 224, or 32 for a stem for small images"""
    prefix: str = ""
    """of a file with several networks, the key prefix of the one to load: teacher."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """of RGB values in [0, 1], that its images were normalized with"""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """the same for the standard deviation"""
    overwrite: bool = False
    """replace an existing file"""


def export_(args: list[str]) -> None:
    """Read the command line of `effssl export` and write the file."""
    flags = parse_command(Export, args, "effssl export")
    from effssl.exporting import export

    path = export(
        flags.run, flags.to, flags.out or None, overwrite=flags.overwrite, preprocess=flags.preprocess,
        encoder=flags.encoder, weights=flags.weights, image_size=flags.image_size, whiten=flags.whiten,
    )  # fmt: skip
    print(f"{path}: {path.stat().st_size / 1e6:,.1f} MB   how to load it: {path}.md")


def import_(args: list[str]) -> None:
    """Read the command line of `effssl import` and write the encoder file."""
    flags = parse_command(Import, args, "effssl import")
    from effssl.exporting.importing import import_encoder

    path = import_encoder(
        flags.file, flags.encoder, flags.out, prefix=flags.prefix, overwrite=flags.overwrite,
        image_size=flags.image_size, mean=flags.mean, std=flags.std,
    )  # fmt: skip
    print(f"{path}   next: effssl eval knn {path} --data …")
