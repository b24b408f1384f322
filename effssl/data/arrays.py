"""Images of one size in memory, and those of a NumPy file.

`.npy`: one array of images. `.npz`: `images`, and if there are any `labels`, `test_images`, `test_labels`.
Images are N×H×W (gray), N×H×W×C or N×C×H×W with C from 1 to 32; whole numbers or floats. A large .npy file is mapped
(effssl/data/mapped.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from effssl.augment.pixel_format import PICTURES, PixelFormat
from effssl.data.dataset import Data
from effssl.data.display import picture
from effssl.data.images import CropRequest, Crops, Reading, crop_from_pixels, hex_digest, select_labels
from effssl.data.layouts import check_size, format_of, stack_of
from effssl.data.mapped import LARGE, map_images
from effssl.runtime.errors import RequestError
from effssl.runtime.reading import describe, map_array, read_array, read_arrays

KEYS = ("images", "labels", "test_images", "test_labels")
PART = 1 << 24  # pixel values that are cropped at a time

Result = TypeVar("Result")


@dataclass(frozen=True)
class ArrayImages:
    """Images of one size, in memory."""

    pixels: Tensor  # N×C×H×W
    labels: Tensor | None = None  # N int64
    classes: list[str] = field(default_factory=list)
    paths: list[Path] | None = None  # files that they were decoded from
    pixel_format: PixelFormat = PICTURES
    in_memory = True
    from_files = False

    def __post_init__(self) -> None:
        found = self.pixels.shape[1], str(self.pixels.dtype).removeprefix("torch.")
        if found != (self.pixel_format.channels, self.pixel_format.depth):
            raise ValueError(f"{found[0]} channels of {found[1]} are not {self.pixel_format}")

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def sizes(self) -> Tensor:
        """Height and width of every image, N×2."""
        return torch.tensor(self.pixels.shape[-2:]).expand(len(self), 2)

    def select(self, rows: Tensor) -> ArrayImages:
        """The same set with only these rows."""
        paths = None if self.paths is None else [self.paths[row] for row in rows.tolist()]
        return replace(self, pixels=self.pixels[rows], labels=select_labels(self.labels, rows), paths=paths)

    def fingerprint(self) -> str:
        """A short digest that changes when an image or a label does."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update(self.pixels.contiguous().numpy().data)
        return hex_digest(digest, self.labels)

    def array(self, row: int) -> np.ndarray:
        """The pixels of one image, H×W×C."""
        return self.pixels[row].permute(1, 2, 0).numpy()

    def image(self, row: int) -> Image.Image:
        """One whole image."""
        return picture(self.array(row), self.pixel_format)

    def crops(self, requests: Iterable[CropRequest], reading: Reading) -> Iterator[Crops]:
        """The crops of each request, in order."""
        together = max(1, PART // self.pixels[0].numel())

        def read(rows: Tensor) -> list[Tensor]:
            # For bytes index_select is twenty times as fast as an index in brackets.
            return [self.pixels.index_select(0, part) for part in rows.split(together)]

        return crop_from_pixels(((request, read(request.rows)) for request in requests), self.pixel_format, reading)


def is_array_file(spec: str) -> bool:
    """Whether a name is that of a NumPy file."""
    return Path(spec).suffix in (".npy", ".npz")


def open_arrays(spec: str, labels: str = "auto") -> Data:
    """Open a .npy or .npz file; object arrays (images of different sizes, or code) are refused."""
    path = Path(spec).expanduser()
    if path.suffix == ".npy" and path.is_file() and path.stat().st_size >= LARGE:
        return Data(path.stem, map_images(_readable(path, map_array), path))
    arrays = _read(path)
    if "images" not in arrays:
        found = ", ".join(arrays) or "nothing"
        raise RequestError(f"{path} has no array named images (found: {found}; known: {', '.join(KEYS)})")
    train = _images(arrays["images"], arrays.get("labels"), path)
    test = None
    if "test_images" in arrays:
        test = _images(arrays["test_images"], arrays.get("test_labels"), path, train)
    return Data(path.stem, train, test)


def _read(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a file; the one of a .npy file is called images."""
    return {"images": _readable(path, read_array)} if path.suffix == ".npy" else _readable(path, read_arrays)


def _readable(path: Path, read: Callable[[Path], Result]) -> Result:
    """What a reader gives, refused in one line where it raises."""
    try:
        return read(path)
    except FileNotFoundError:
        raise RequestError(f"no such file: {path}") from None
    except (OSError, ValueError) as error:
        if "allow_pickle" in str(error) or "Object arrays" in str(error):
            raise RequestError(
                f"{path} holds Python objects instead of one array, as it does when images differ in size; "
                "give all images one size, or save them as files in a folder"
            ) from None
        raise RequestError(f"{path} is not a readable NumPy file: {describe(error)}") from None


def _images(array: np.ndarray, labels: np.ndarray | None, path: Path, train: ArrayImages | None = None) -> ArrayImages:
    """The images of a file; those of its test images have the format and the classes of the training images."""
    stack = stack_of(array, str(path))
    pixels = torch.from_numpy(np.ascontiguousarray(stack))
    check_size(len(pixels), pixels.shape[-2:], str(path))
    found = format_of(stack, 1, str(path))
    if train is not None and (found.channels, found.depth) != (train.pixel_format.channels, train.pixel_format.depth):
        raise RequestError(f"{path}: the test images have {found}, the training images {train.pixel_format}")
    images = ArrayImages(pixels, pixel_format=train.pixel_format if train is not None else found)
    if labels is None:
        return images
    if labels.shape != (len(pixels),):
        raise RequestError(f"{path}: {len(pixels)} images but labels of shape {labels.shape}; one label per image")
    names, index = np.unique(labels, return_inverse=True)
    classes = train.classes if train is not None else []
    if not classes:
        return replace(images, labels=torch.from_numpy(index).long(), classes=[str(name) for name in names])
    unknown = [str(name) for name in names if str(name) not in classes]
    if unknown:
        raise RequestError(f"{path}: the test label {unknown[0]!r} is not among the training labels")
    position = torch.tensor([classes.index(str(name)) for name in names])
    return replace(images, labels=position[torch.from_numpy(index).long()], classes=classes)
