"""The verb `import`: a checkpoint of another project becomes an encoder file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from effssl.network.foreign import MEAN, STD, load_weight_file
from effssl.network.loaded import dump_encoder, is_encoder_file
from effssl.network.options import LARGEST_SIDE
from effssl.runtime.errors import RequestError
from effssl.runtime.files import check_output, write_atomically
from effssl.runtime.progress import say

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Preprocessing(TypedDict, total=False):
    """How the images of a checkpoint were preprocessed; the defaults are those of ImageNet models."""

    image_size: int  # side in pixels; 0 is 224, or 32 for a stem for small images
    mean: tuple[float, float, float]  # of RGB values in [0, 1]
    std: tuple[float, float, float]


def import_encoder(
    file: str | Path,
    encoder: str,
    out: str | Path,
    *,
    prefix: str = "",
    overwrite: bool = False,
    **preprocessing: Unpack[Preprocessing],
) -> Path:
    """Convert a checkpoint of lightly, solo-learn, VISSL, MoCo, SwAV, DINO … to an encoder file; return its path.

    Args:
        file: .pth, .ckpt, .safetensors …; only weights are read, no code in it runs
        encoder: its architecture: resnet50, any torchvision classifier, timm:<name>
        out: .safetensors file to write
        prefix: of a file with several networks, the key prefix of the one to load: teacher.
        overwrite: replace an existing file
        **preprocessing: `image_size` (default 224, or 32 for a stem for small images), and the `mean` and `std` that
            images were normalized with (default those of ImageNet)
    """
    source, path = Path(file).expanduser(), Path(out).expanduser()
    _check_paths(source, path, overwrite)
    image_size, mean, std = _checked(**preprocessing)
    loaded, result = load_weight_file(source, encoder, image_size, prefix)
    say(f"loaded: {result.loaded} tensors with the prefix {result.prefix or '(none)'} in {source.name}")
    if result.unused:
        parts = ", ".join(f"{part} ({count})" for part, count in result.unused.items())
        say(f"not loaded: {sum(result.unused.values())} tensors of heads, momentum copies and the like: {parts}")
    if loaded.about["stem"] == "small":
        say("the 3×3 stem is assumed to have padding 1; solo-learn uses 2 for CIFAR, which gives other features")
    about = loaded.about | {"mean": list(mean), "std": list(std)}
    write_atomically(path, dump_encoder(loaded.encoder, about), new=not overwrite)
    return path


def _check_paths(source: Path, path: Path, overwrite: bool) -> None:
    if path.suffix != ".safetensors":
        raise RequestError(f"--out is {path}; the name of an encoder file ends with .safetensors")
    check_output(path, overwrite)
    if not source.is_file():
        raise RequestError(f"no file at {source}")
    if is_encoder_file(source):
        raise RequestError(f"{source} is an encoder file already; use it as it is")
    if path.exists() and path.samefile(source):
        raise RequestError(f"{path} is the imported file itself; choose another --out")


def _checked(
    image_size: int = 0, mean: tuple[float, float, float] = MEAN, std: tuple[float, float, float] = STD
) -> tuple[int, tuple[float, float, float], tuple[float, float, float]]:
    """The preprocessing with its defaults, in range."""
    if not 0 <= image_size <= LARGEST_SIDE:
        raise RequestError(f"image_size is {image_size}; it must be between 0 and {LARGEST_SIDE}")
    if not all(math.isfinite(value) for value in (*mean, *std)) or min(std) <= 0:
        raise RequestError(f"mean is {mean} and std is {std}; each value must be finite, and those of std above 0")
    return image_size, mean, std
