"""Whiten the features of an encoder by the images at hand, without labels; and the encoders that cost nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from effssl.augment.options import Augment
from effssl.data.images import Images
from effssl.data.sample import sampler
from effssl.features.extract import run_over
from effssl.network.encoders import Encoder, build_encoder
from effssl.network.loaded import LoadedEncoder, freeze
from effssl.network.options import Readout as ReadoutOptions
from effssl.network.patches import PatchEncoder
from effssl.network.readout import Readout
from effssl.network.small import SmallEncoder
from effssl.runtime.randomness import generator, seeded

IMAGES = 10_000  # that statistics are computed from, at most


def fitted_readout(loaded: LoadedEncoder, images: Images, options: ReadoutOptions, seed: int) -> Readout:
    """The readout of an encoder, computed from at most IMAGES of the images."""
    images = first_images(images, IMAGES)
    joined = run_over(loaded, images, lambda rows: None, on="joined" if options.maps else "h").h
    readout = Readout(options, joined.shape[1]).eval()
    readout.whitening.fit([joined])
    if readout.patches is not None and readout.patch_whitening is not None:
        readout.patches.fit(sample_of(images, loaded, seed), generator(seed, "readout"))
        alone = LoadedEncoder(Encoder(readout.patches, readout.patches.dim), loaded.about)
        readout.patch_whitening.fit([run_over(alone, images, lambda rows: None).h])
    return readout.to(loaded.device)


def first_images(images: Images, most: int) -> Images:
    """At most so many of the images, always the same ones."""
    if len(images) <= most:
        return images
    return images.select(torch.randperm(len(images), generator=generator(0, "health"))[:most].sort().values)


def sample_of(images: Images, loaded: LoadedEncoder, seed: int) -> Tensor:
    """Some images as an encoder sees them, N×3×S×S."""
    augment = Augment(mean=tuple(loaded.about["mean"]), std=tuple(loaded.about["std"]))
    return sampler(images, loaded.size, augment, seed)()


# ---------------------------------------------------------------------------------------------------------------
# What every encoder has to beat


@torch.no_grad()
def patch_encoder(images: Images, like: LoadedEncoder, name: str = "patches", seed: int = 0) -> LoadedEncoder:
    """k-means patches of these images, whitened, with the preprocessing of another encoder."""
    built = build_encoder(name, like.size)
    assert isinstance(built.backbone, PatchEncoder)
    built.backbone.derive(sample_of(images, like, seed), generator(seed, "filters"))
    return whitened(freeze(built, about_of(like, name)), images, ReadoutOptions(maps=False), seed)


@torch.no_grad()
def untrained_encoder(images: Images, like: LoadedEncoder, seed: int = 0) -> LoadedEncoder:
    """The same network with random weights; whitened if the other is."""
    name, stem = like.about["encoder"], like.about["stem"]
    with seeded(seed, "random weights"):
        built = build_encoder(name, like.size, stem)
    if isinstance(built.backbone, (SmallEncoder, PatchEncoder)):
        built.backbone.derive(sample_of(images, like, seed), generator(seed, "filters"))
    loaded = freeze(built, about_of(like, name))
    readout = like.encoder.readout
    if readout is None:
        return loaded
    return whitened(loaded, images, ReadoutOptions(maps=readout.options.maps, dim=readout.options.dim), seed)


def whitened(loaded: LoadedEncoder, images: Images, options: ReadoutOptions, seed: int = 0) -> LoadedEncoder:
    """The encoder with a readout that is computed from these images; frozen and in eval mode."""
    loaded.encoder.readout = fitted_readout(loaded, images, options, seed)
    return loaded.requires_grad_(False).eval()


def about_of(like: LoadedEncoder, name: str) -> dict[str, Any]:
    """The preprocessing of an encoder for another one."""
    keys = ("image_size", "stem", "mean", "std", "filter", "share")
    return {key: like.about[key] for key in keys if key in like.about} | {"encoder": name, "weights": "untrained"}
