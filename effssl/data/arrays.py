"""Images from a NumPy file.

`.npy`: one array of images. `.npz`: `images`, and if there are any `labels`, `test_images`, `test_labels`.
Images are N×H×W (gray), N×H×W×C or N×C×H×W with C = 1, 3 or 4; uint8, or floats between 0 and 1.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from effssl.data.sets import ArrayImages, Data
from effssl.runtime.errors import RequestError

KEYS = ("images", "labels", "test_images", "test_labels")


def load_arrays(path: Path) -> Data:
    """Open a .npy or .npz file; object arrays (images of different sizes, or code) are refused."""
    try:
        with np.load(path, allow_pickle=False) if path.suffix == ".npz" else _single(path) as file:
            arrays = {key: file[key] for key in file}
    except FileNotFoundError:
        raise RequestError(f"no such file: {path}") from None
    except ValueError as error:
        if "allow_pickle" in str(error) or "Object arrays" in str(error):
            raise RequestError(
                f"{path} holds Python objects instead of one array, as it does when images differ in size; "
                "give all images one size, or save them as files in a folder"
            ) from None
        raise RequestError(f"{path} is not a readable NumPy file: {error}") from None
    except (OSError, EOFError, KeyError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise RequestError(f"{path} is not a readable NumPy file: {error}") from None
    if "images" not in arrays:
        found = ", ".join(arrays) or "nothing"
        raise RequestError(f"{path} has no array named images (found: {found}; known: {', '.join(KEYS)})")
    train = _images(arrays["images"], arrays.get("labels"), path)
    test = None
    if "test_images" in arrays:
        test = _images(arrays["test_images"], arrays.get("test_labels"), path, train.classes)
    return Data(path.stem, train, test)


class _single(dict):  # noqa: N801 — a .npy file seen as an .npz with one array
    def __init__(self, path: Path) -> None:
        super().__init__(images=np.load(path, allow_pickle=False))

    def __enter__(self) -> _single:
        return self

    def __exit__(self, *_: object) -> None: ...


def _images(array: np.ndarray, labels: np.ndarray | None, path: Path, classes: list[str] | None = None) -> ArrayImages:
    pixels = _pixels(array, path)
    if len(pixels) == 0:
        raise RequestError(f"{path} holds no images (shape {array.shape})")
    if labels is None:
        return ArrayImages(pixels)
    if labels.shape != (len(pixels),):
        raise RequestError(f"{path}: {len(pixels)} images but labels of shape {labels.shape}; one label per image")
    names, index = np.unique(labels, return_inverse=True)
    if not classes:
        return ArrayImages(pixels, torch.from_numpy(index).long(), [str(name) for name in names])
    unknown = [str(name) for name in names if str(name) not in classes]
    if unknown:
        raise RequestError(f"{path}: the test label {unknown[0]!r} is not among the training labels")
    position = torch.tensor([classes.index(str(name)) for name in names])
    return ArrayImages(pixels, position[torch.from_numpy(index).long()], classes)


def _pixels(array: np.ndarray, path: Path) -> Tensor:
    color = channels_first(array, str(path))
    if color.dtype != np.uint8:
        color = (color * 255).round().astype(np.uint8)
    return torch.from_numpy(np.ascontiguousarray(color))


def channels_first(array: np.ndarray, where: str) -> np.ndarray:
    """Images as N×3×H×W, uint8 or floats between 0 and 1; what is neither is refused."""
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim == 4 and array.shape[-1] not in (1, 3, 4) and array.shape[1] in (1, 3, 4):
        array = array.transpose(0, 2, 3, 1)
    if array.ndim != 4 or array.shape[-1] not in (1, 3, 4):
        raise RequestError(
            f"{where}: images of shape {array.shape}; expected N×H×W, N×H×W×C or N×C×H×W with C = 1, 3, 4"
        )
    unit = array.dtype.kind == "f" and (array.size == 0 or (array.min() >= 0 and array.max() <= 1))
    if array.dtype != np.uint8 and not unit:
        raise RequestError(f"{where}: images of type {array.dtype}; expected uint8, or floats between 0 and 1")
    color = array[..., :3] if array.shape[-1] >= 3 else np.repeat(array, 3, axis=-1)
    return color.transpose(0, 3, 1, 2)
