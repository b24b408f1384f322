"""The encoder that computes features, and its settings."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

from effssl.data.webdataset import is_shards
from effssl.loading import load
from effssl.network.loaded import LoadedEncoder
from effssl.run import RunFolder
from effssl.runtime.device import pick_device
from effssl.runtime.errors import RequestError
from effssl.several import PLUS

EncoderLike = str | Path | RunFolder | LoadedEncoder
"""Anything `effssl.load` takes, a run, or a loaded encoder."""


class EncodingOptions(TypedDict, total=False):
    """Settings of an encoder and of how it is run."""

    encoder: str  # architecture of a weight file that does not name it
    weights: str  # of an encoder given by name: default or random
    image_size: int  # input size of a foreign encoder; 0 is its own
    device: str
    batch: int  # images per batch
    workers: int  # processes that decode; -1 is one per core
    whiten: str  # off: h itself, of an encoder whose features are whitened


class FeatureOptions(EncodingOptions, total=False):
    """Settings of feature extraction that the functions of `effssl.explore` take."""

    labels: str  # whether sub-folders are labels: auto only in a train/–val/ or train/–test/ layout, folders, none


def open_encoder(run: EncoderLike, options: EncodingOptions) -> LoadedEncoder:
    """Load an encoder and move it to its device."""
    if isinstance(run, LoadedEncoder):
        encoder = run
    elif isinstance(run, RunFolder):
        encoder = load(run.folder)
    elif not str(run):
        raise RequestError("which encoder? a run folder, a weight file, a torchvision model or timm:<name>")
    else:
        weights, image_size = options.get("weights", "default"), options.get("image_size", 0)
        encoder = load(run, options.get("encoder", ""), weights, image_size)
    if options.get("whiten") == "off":
        encoder = encoder.without_whitening()
    return encoder.to(pick_device(options.get("device", "auto")))


def own_data(run: EncoderLike | None) -> str:
    """The images that a run was trained on."""
    folder = run if isinstance(run, RunFolder) else None
    if isinstance(run, (str, Path)) and str(run) and (path := Path(run).expanduser()).is_dir():
        if not (path / "config.yaml").is_file():
            raise RequestError(f"{run} is not a run folder; images are given by --data: RUN --data {run}")
        folder = RunFolder(path)
    if folder is None:
        raise RequestError(
            "which images? a run folder names its own; else --data FOLDER, or --features with a file of effssl embed"
        )
    data = folder.config.data
    alone = PLUS not in data and not is_shards(data)
    if alone and os.path.isabs(data) and not os.path.exists(data):
        raise RequestError(f"{data}, which {folder.folder} was trained on, is not there; --data names the images")
    return data


def encoder_digest(encoder: LoadedEncoder) -> str:
    """A short digest of an encoder's weights and preprocessing."""
    transform: list[Any] = [
        encoder.size, encoder.share, encoder.filter, list(encoder.about["mean"]), list(encoder.about["std"])
    ]  # fmt: skip
    if not encoder.pixels.is_picture:
        transform.append(asdict(encoder.pixels))
    return hashlib.blake2b(f"{encoder.fingerprint()} {json.dumps(transform)}".encode(), digest_size=8).hexdigest()
