"""An encoder as a transformer of scikit-learn."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.base import BaseEstimator, TransformerMixin
from torch import Tensor

from effssl.augment.pixel_format import LIMITS
from effssl.data.folder import images_of
from effssl.data.formats import examine, reason
from effssl.data.image_files import upright_rgb
from effssl.data.layouts import format_of, stack_of
from effssl.explore.encoder import FeatureOptions, open_encoder
from effssl.features.extract import feature_batches
from effssl.network.loaded import LoadedEncoder, pil_to_tensor
from effssl.runtime.errors import RequestError


@dataclass(eq=False, repr=False)
class FeatureExtractor(TransformerMixin, BaseEstimator):
    """Features of images, N×dim, by a frozen encoder.

    `make_pipeline(FeatureExtractor("runs/photos"), LogisticRegression())` is an image classifier. Images are an array
    N×H×W×3 or N×3×H×W (uint8, or floats between 0 and 1), or a list of paths or of PIL images. `run` is anything that
    `effssl.load` takes; `fit` learns nothing.
    """

    run: Any
    encoder: str = ""
    weights: str = "default"
    image_size: int = 0
    device: str = "auto"
    batch: int = 256
    workers: int = 0
    _opened: LoadedEncoder | None = field(default=None, init=False)
    _opened_with: tuple[Any, ...] = field(default=(), init=False)

    def fit(self, X: Any, y: Any = None) -> FeatureExtractor:  # noqa: N803
        """Load the encoder, so that a mistake is reported at once."""
        self.n_features_out_ = self._open().dim
        return self

    def transform(self, X: Any) -> np.ndarray:  # noqa: N803
        """Features of images, N×dim float32."""
        if self.batch < 1:
            raise RequestError(f"batch is {self.batch}; it must be at least 1")
        encoder = self._open()
        with torch.inference_mode():
            batches = list(_feature_batches(encoder, X, self.batch, self.workers))
        return np.concatenate(batches) if batches else np.empty((0, encoder.dim), np.float32)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """f0, f1, …, as in the files of `effssl embed`."""
        return np.array([f"f{i}" for i in range(self._open().dim)], dtype=object)

    def _open(self) -> LoadedEncoder:
        settings = (self.run, self.encoder, self.weights, self.image_size, self.device)
        if self._opened is None or self._opened_with != settings:
            options = FeatureOptions(
                encoder=self.encoder, weights=self.weights, image_size=self.image_size, device=self.device
            )
            self._opened, self._opened_with = open_encoder(self.run, options), settings
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        # A loaded encoder is not pickled: the copy loads it again.
        return {key: value for key, value in super().__getstate__().items() if not key.startswith("_opened")}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        return tags


def _feature_batches(encoder: LoadedEncoder, images: Any, batch: int, workers: int) -> Iterator[np.ndarray]:
    if isinstance(images, (str, Path, Image.Image)):
        raise RequestError(f"images are a list or an array, not a single {type(images).__name__}")
    if isinstance(images, Tensor):
        images = images.detach().cpu().numpy()
    kinds = {type(image) for image in images} if not isinstance(images, np.ndarray) or images.dtype == object else set()
    if kinds and all(issubclass(kind, Image.Image) for kind in kinds):
        yield from _of_pil_images(encoder, images, batch)
    elif kinds and all(issubclass(kind, (str, os.PathLike)) for kind in kinds):
        yield from _of_files(encoder, [Path(file).expanduser() for file in images], batch, workers)
    elif isinstance(images, np.ndarray) and images.dtype.kind == "U":
        yield from _of_files(encoder, [Path(file).expanduser() for file in images.tolist()], batch, workers)
    else:
        yield from _of_arrays(encoder, images if isinstance(images, np.ndarray) else _stacked(images), batch)


def _of_arrays(encoder: LoadedEncoder, images: np.ndarray, batch: int) -> Iterator[np.ndarray]:
    for start in range(0, len(images), batch):
        pixels = stack_of(images[start : start + batch], "images")
        found = format_of(pixels, 1, "images")
        if found.depth == "float32" != encoder.pixels.depth and found.range != LIMITS["float32"]:
            low, high = found.range
            raise RequestError(f"images: values from {low:g} to {high:g}; expected uint8, or floats between 0 and 1")
        x = torch.from_numpy(np.ascontiguousarray(pixels))
        yield encoder(x.to(encoder.device)).float().cpu().numpy()


def _stacked(images: Sequence[Any]) -> np.ndarray:
    arrays = [np.asarray(image) for image in images]
    if any(array.ndim < 2 or array.shape != arrays[0].shape for array in arrays):
        raise RequestError("images are an array of images of one size, a list of paths or of PIL images")
    return np.stack(arrays) if arrays else np.empty((0, 1, 1, 3), np.uint8)


def _of_pil_images(encoder: LoadedEncoder, images: Sequence[Image.Image], batch: int) -> Iterator[np.ndarray]:
    for start in range(0, len(images), batch):
        tensors = (pil_to_tensor(upright_rgb(image))[None] for image in images[start : start + batch])
        x = torch.cat([encoder.preprocess(image.to(encoder.device)) for image in tensors])
        yield encoder.encoder(x.contiguous(memory_format=torch.channels_last)).float().cpu().numpy()


def _of_files(encoder: LoadedEncoder, files: list[Path], batch: int, workers: int) -> Iterator[np.ndarray]:
    abouts = [examine(file) for file in files]
    # Every image needs its row, so none can be skipped.
    if unreadable := [file for file, about in zip(files, abouts, strict=True) if about is None]:
        first = f"{unreadable[0]}{reason(unreadable[0])}"
        raise RequestError(f"{len(unreadable)} of {len(files)} images cannot be read, e.g. {first}")
    images, _ = images_of(files, abouts)
    if images is None:
        return
    done = 0
    for h, rows in feature_batches(encoder, images, batch=batch, workers=workers):
        if int(rows[0]) != done or len(rows) < min(batch, len(files) - done):
            break
        done += len(rows)
        yield h.numpy()
    if done < len(files):
        raise RequestError(f"an image among {files[done]} and the next {batch} cannot be decoded")
