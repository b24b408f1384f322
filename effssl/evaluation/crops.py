"""Random crops and flips of labelled training images, for protocols that train on them."""

from __future__ import annotations

from effssl.augment.options import Augment, ViewGroup
from effssl.data import Images
from effssl.data.loader import Batching, ViewLoader, ViewSpec
from effssl.network.loaded import LoadedEncoder

CROPS = {"scale": (0.08, 1.0), "flip": 0.5, "jitter": 0.0, "gray": 0.0}


def crop_loader(encoder: LoadedEncoder, images: Images, batch: int, seed: int, workers: int = -1) -> ViewLoader:
    """One random resized crop per image and epoch, preprocessed for the encoder; the last partial batch is kept."""
    mean, std = tuple(encoder.about["mean"]), tuple(encoder.about["std"])
    augment = Augment(pixels=encoder.pixels, mean=mean, std=std, **CROPS)  # type: ignore[arg-type]
    batch = min(batch, len(images))
    spec = ViewSpec(augment, {"large": ViewGroup(count=1)}, encoder.size)
    return ViewLoader(images, spec, Batching(batch, seed, keep_partial=True, workers=workers), encoder.device)
