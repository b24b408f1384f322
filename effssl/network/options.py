"""Settings of the network. No torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from effssl.schema import Count, Positive


@dataclass(frozen=True)
class Projector:
    """The projection head g: `layers` linear layers, d → hidden → … → out, ReLU between them."""

    layers: Count = 2
    """number of linear layers; 0 means z = h"""
    hidden: Positive = 512
    """width of the hidden layers"""
    out: Positive = 128
    """width of z"""
    norm: bool = True
    """batch norm after each hidden layer"""
    output_norm: bool = False
    """batch norm after the last layer too"""


DERIVED_STEMS = ("pca", "kmeans")
"""Stems that are computed from the training images."""
LARGEST_SIDE = 1 << 11
"""Side of the images of an encoder, at most: a batch of larger ones takes minutes and fills the memory."""
STEMS = ("auto", "small", "large", *DERIVED_STEMS)
FILTERS = 400  # of the encoder `patches`
PIXELS = 16  # side of the encoder `pixels`
PATCH_DIM = 1024
"""Whitened features of k-means patches; on CIFAR-10, 400 filters, validation: kNN 73.3 with 512, 74.6 with 1024."""


@dataclass(frozen=True)
class ReadoutOptions:
    """Features of the finished encoder, with `--whiten on`: computed from the training images, without labels."""

    flip: bool = True
    """features are means over an image and its mirror image"""
    maps: bool = True
    """join the means of 2×2 regions of the last two feature maps to h"""
    patches: Count = 0
    """number of k-means patch filters whose pooled responses are joined too; 0 is none"""
    patch_stride: Positive = 1
    """pixels between two patches"""
    images: Positive = 10_000
    """training images that the whitening is computed from, at most"""
    dim: Positive = 256
    """whitened features that are kept of the encoder"""
    patch_dim: Positive = PATCH_DIM
    """whitened features that are kept of the patches"""


def pixels_side(name: str) -> int:
    """Side of the images whose pixels are the features, by the encoder's name; 0 if it is another kind.

    >>> pixels_side("pixels"), pixels_side("pixels-8"), pixels_side("patches")
    (16, 8, 0)
    """
    found = re.fullmatch(r"pixels(?:-([1-9]\d{0,2}))?", name)
    return int(found[1] or PIXELS) if found else 0


def patch_filters(name: str) -> int:
    """Number of k-means filters of an encoder by its name; 0 if it is another kind.

    >>> patch_filters("patches"), patch_filters("patches-100"), patch_filters("small")
    (400, 100, 0)
    """
    found = re.fullmatch(r"patches(?:-([1-9]\d{0,4}))?", name)
    return int(found[1] or FILTERS) if found else 0
