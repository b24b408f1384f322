"""The verb `import`: a checkpoint of another project becomes an encoder file of effssl."""

from __future__ import annotations

from pathlib import Path

from effssl.network.foreign import MEAN, STD, from_file
from effssl.network.loaded import dump_encoder, is_ours
from effssl.runtime.errors import RequestError
from effssl.runtime.files import check_output, write_atomically
from effssl.runtime.progress import say


def import_encoder(
    file: str | Path,
    encoder: str,
    out: str | Path,
    *,
    image_size: int = 0,
    prefix: str = "",
    mean: tuple[float, float, float] = MEAN,
    std: tuple[float, float, float] = STD,
    overwrite: bool = False,
) -> Path:
    """Make an encoder file from a checkpoint of lightly, solo-learn, VISSL, MoCo, SwAV, DINO …, and say what was taken.

    Args:
        file: .pth, .ckpt, .safetensors …; only weights are read, nothing in it can run
        encoder: which network it is: resnet50, any torchvision classifier, timm:<name>
        out: .safetensors file to write
        image_size: side of the images it was trained on; default 224, or 32 for a stem for small images
        prefix: of a file with several networks, the one whose names begin so: teacher.
        mean: of the colors, 0 to 1, that its images were normalized with
        std: the same for their standard deviation
        overwrite: write over an existing file
    """
    source, path = Path(file).expanduser(), Path(out).expanduser()
    if path.suffix != ".safetensors":
        raise RequestError(f"--out is {path}; an encoder file's name ends with .safetensors")
    check_output(path, overwrite)
    if not source.is_file():
        raise RequestError(f"no file at {source}")
    if is_ours(source):
        raise RequestError(f"{source} is an encoder file of effssl already")
    if path.exists() and path.samefile(source):
        raise RequestError(f"{path} is what is imported; choose another --out")
    if image_size < 0 or min(std) <= 0:
        raise RequestError(f"image size {image_size} and std {std} must not be below 0, and no std 0")
    loaded, filled = from_file(source, encoder, image_size, prefix)
    say(f"taken: {filled.taken} tensors, named {filled.prefix}… in {source.name}")
    if filled.left:
        parts = ", ".join(f"{part} ({count})" for part, count in filled.left.items())
        say(f"left out: {sum(filled.left.values())} tensors of heads, copies and the like: {parts}")
    if loaded.about["stem"] == "small":
        say("its 3×3 stem is taken to be padded by 1 pixel; solo-learn pads by 2 for CIFAR, which changes features")
    about = loaded.about | {"mean": list(mean), "std": list(std)}
    write_atomically(path, dump_encoder(loaded.encoder, about), new=not overwrite)
    return path
