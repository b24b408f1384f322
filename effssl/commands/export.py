"""effssl export RUN --to TARGET, and effssl import FILE: encoders for other software, and from it."""

from __future__ import annotations

from typing import Literal


def export(
    run: str,
    /,
    to: Literal["torchvision", "timm", "safetensors", "onnx", "pt2"],
    out: str = "",
    encoder: str = "",
    weights: Literal["default", "random"] = "default",
    image_size: int = 0,
    overwrite: bool = False,
) -> None:
    """Write an encoder as a file that other software reads, with a card beside it that says what it is.

    Args:
        run: run folder, weight file, torchvision model or timm:<name>
        to: torchvision: state dict; timm: safetensors by timm's names; safetensors: for effssl itself; onnx: graph;
            pt2: torch.export program
        out: file to write; default: the run's name with the target's ending, in the current folder. The card is OUT.md
        encoder: which network a weight file is, e.g. resnet50
        weights: of a model given by name
        image_size: of a weight file, or of a model given by name; 0 is its own
        overwrite: write over existing files
    """
    from effssl.exporting import export

    made = export(
        run, to, out or None, encoder=encoder, weights=weights, image_size=image_size, overwrite=overwrite
    )  # fmt: skip
    print(f"{made}: {made.stat().st_size / 1e6:,.1f} MB   how to load it, and what it is: {made}.md")


def import_(args: list[str]) -> None:
    """Read the command line of `effssl import`, whose name Python keeps for itself."""
    import tyro

    tyro.cli(import_file, args=args, prog="effssl import")


def import_file(
    file: str,
    /,
    encoder: str,
    out: str,
    image_size: int = 0,
    prefix: str = "",
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406),
    std: tuple[float, float, float] = (0.229, 0.224, 0.225),
    overwrite: bool = False,
) -> None:
    """Make an encoder file from a checkpoint of lightly, solo-learn, VISSL, MoCo, SimSiam, SwAV, DINO and the like.

    Args:
        file: .pth, .ckpt, .safetensors …; only weights are read, nothing in it can run
        encoder: which network it is: resnet50, any torchvision classifier, timm:<name>
        out: .safetensors file to write
        image_size: side of the images it was trained on; 0 is 224, or 32 for a stem for small images
        prefix: of a file with several networks, the one whose names begin so: teacher.
        mean: that its images were normalized with, colors from 0 to 1
        std: the same for the standard deviation
        overwrite: write over an existing file
    """
    from effssl.exporting.importing import import_encoder

    made = import_encoder(
        file, encoder, out, image_size=image_size, prefix=prefix, mean=mean, std=std, overwrite=overwrite
    )
    print(f"{made}   next: effssl eval knn {made} --data …")
