"""Flags that the verbs of effssl.explore share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from effssl.commands.encoder_source import EncoderSource

FEATURE_OPTIONS = ("labels", "encoder", "weights", "image_size", "device", "batch", "workers")


@dataclass(frozen=True)
class ImageSource(EncoderSource):
    """Images, and the encoder that computes their features."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = ""
    """run folder, weight file (.safetensors, .pt, .pth), torchvision model or timm:<name>"""
    data: str = ""
    """folder of images, of any layout; or a pack, table, archive, array file, cifar10 …: train, then test images; by
    default the run's own"""
    labels: Literal["auto", "folders", "none"] = "auto"
    """sub-folders are labels: auto only in a train/–val/ or train/–test/ layout"""
    batch: int = 256
    """images per batch; smaller batches need less memory"""
    workers: int = -1
    """processes that decode; −1 is one per core"""
    overwrite: bool = False
    """replace an existing --out"""

    def feature_options(self) -> dict[str, Any]:
        """The settings of feature extraction, as the functions of effssl.explore take them."""
        return {name: getattr(self, name) for name in FEATURE_OPTIONS}


@dataclass(frozen=True)
class ExploreOptions(ImageSource):
    """Options of the verbs that compare features."""

    features: str = ""
    """file of an earlier effssl embed, in place of RUN and --data"""
    out: str = ""
    """also write the table to this .csv or .json file, or to an .html page that shows the images"""

    def images(self) -> str | None:
        """Where the images are: in --data, or else in the run's own; None where only their features are given."""
        from effssl.explore.encoder import own_data

        return self.data or (None if self.features else own_data(self.run))

    def source(self) -> dict[str, Any]:
        """Where the features come from, as the functions of effssl.explore take it."""
        return {name: getattr(self, name) or None for name in ("run", "data", "features")}
