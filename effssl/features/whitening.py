"""Whiten the features of an encoder by the images at hand, without labels; and the encoders that cost nothing."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from effssl.augment.options import Augment
from effssl.data.images import Images
from effssl.data.sample import sampler
from effssl.features.extract import run_over
from effssl.network.encoders import Encoder, JoinedMaps, build_encoder
from effssl.network.loaded import LoadedEncoder, freeze, pixels_of
from effssl.network.options import PATCH_DIM, PIXELS, ReadoutOptions
from effssl.network.patches import PatchEncoder, PatchResponses
from effssl.network.readout import Readout, Whitening, flip_mean
from effssl.network.small import SmallEncoder
from effssl.runtime.errors import RequestError
from effssl.runtime.randomness import generator, seeded

WIDEST = 8192  # features that can be whitened: their covariance takes half a GiB


class _FlipMean(nn.Module):
    def __init__(self, module: nn.Module, flip: bool) -> None:
        super().__init__()
        self.module = module
        self.flip = flip

    def forward(self, x: Tensor) -> Tensor:
        return flip_mean(self.module, x, self.flip)


class ReadoutFitter:
    """Readouts for the encoders of a run, by the same images; what does not depend on the encoder is computed once."""

    def __init__(self, images: Images, options: ReadoutOptions, about: dict[str, Any], seed: int) -> None:
        """`about` is the metadata of the encoders: their preprocessing."""
        self.images = first_images(images, options.images)
        self.options = options
        self.about = about
        self.seed = seed

    @torch.no_grad()
    def prepare(self) -> None:
        """Compute what all readouts share, now."""
        if self.options.patches:
            self._patches  # noqa: B018

    @torch.no_grad()
    def fit(self, encoder: Encoder) -> Encoder:
        """The same network with a readout, as another object; the given one is left as it is."""
        joined = self._features(JoinedMaps(encoder) if self.options.maps else encoder.backbone)
        if joined.shape[1] > WIDEST:
            raise RequestError(
                f"{joined.shape[1]:,} features are too many to whiten (at most {WIDEST:,}); use --readout.no-maps"
            )
        readout = Readout(self.options, joined.shape[1], len(self.about["mean"]))
        readout.whitening.fit([joined])
        if self.options.patches:
            readout.patches, readout.patch_whitening = self._patches
        finished = Encoder(encoder.backbone, encoder.h_dim)
        finished.readout = readout.to(encoder.device)
        return finished

    @cached_property
    def _patches(self) -> tuple[PatchResponses, Whitening]:
        channels = len(self.about["mean"])
        patches = PatchResponses(self.options.patches, stride=self.options.patch_stride, channels=channels)
        patches.fit(sample_of(self.images, self.about, self.seed), generator(self.seed, "readout"))
        whitening = Whitening(patches.dim, self.options.patch_dim)
        whitening.fit([self._features(patches)])
        return patches, whitening

    def _features(self, module: nn.Module) -> Tensor:
        encoder = Encoder(_FlipMean(module, self.options.flip), 0)
        return run_over(LoadedEncoder(encoder, self.about), self.images, lambda rows: None).h


def first_images(images: Images, most: int) -> Images:
    """At most so many of the images, always the same ones."""
    if len(images) <= most:
        return images
    return images.select(torch.randperm(len(images), generator=generator(0, "health"))[:most].sort().values)


def sample_of(images: Images, about: dict[str, Any], seed: int) -> Tensor:
    """Some images with the preprocessing of an encoder, N×C×S×S."""
    augment = Augment(pixels=pixels_of(about), mean=tuple(about["mean"]), std=tuple(about["std"]))
    return sampler(images, about["image_size"], augment, seed)()


# ---------------------------------------------------------------------------------------------------------------
# What every encoder has to beat


@torch.no_grad()
def patch_encoder(
    images: Images, like: LoadedEncoder, name: str = "patches", seed: int = 0, dim: int = PATCH_DIM
) -> LoadedEncoder:
    """k-means patches of these images, whitened to `dim` features, with the preprocessing of another encoder."""
    built = build_encoder(name, like.size, channels=like.pixels.channels).to(like.device)
    assert isinstance(built.backbone, PatchEncoder)
    built.backbone.derive(sample_of(images, like.about, seed), generator(seed, "filters"))
    return whitened(freeze(built, about_of(like, name)), images, ReadoutOptions(maps=False, dim=dim), seed)


@torch.no_grad()
def untrained_encoder(images: Images, like: LoadedEncoder, seed: int = 0) -> LoadedEncoder:
    """The same network with random weights; whitened if the other is."""
    name, stem = like.about["encoder"], like.about["stem"]
    with seeded(seed, "random weights"):
        built = build_encoder(name, like.size, stem, like.pixels.channels)
    if isinstance(built.backbone, (SmallEncoder, PatchEncoder)):
        built.backbone.derive(sample_of(images, like.about, seed), generator(seed, "filters"))
    loaded = freeze(built.to(like.device), about_of(like, name))
    readout = like.encoder.readout
    if readout is None:
        return loaded
    return whitened(loaded, images, readout.options, seed)


def pixel_encoder(like: LoadedEncoder) -> LoadedEncoder:
    """The pixels themselves, at a small side, with the channels and the normalization of another encoder."""
    about = about_of(like, "pixels") | {"image_size": PIXELS, "stem": "auto", "share": 1.0}
    return freeze(build_encoder("pixels", PIXELS, channels=like.pixels.channels), about)


def whitened(loaded: LoadedEncoder, images: Images, options: ReadoutOptions, seed: int = 0) -> LoadedEncoder:
    """The encoder with a readout that is computed from these images; frozen and in eval mode."""
    return freeze(ReadoutFitter(images, options, loaded.about, seed).fit(loaded.encoder), loaded.about)


def about_of(like: LoadedEncoder, name: str) -> dict[str, Any]:
    """The preprocessing of an encoder for another one."""
    keys = ("image_size", "stem", "mean", "std", "pixels", "filter", "share")
    return {key: like.about[key] for key in keys if key in like.about} | {"encoder": name, "weights": "untrained"}
