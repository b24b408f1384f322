"""Encoder files: safetensors with the weights, and the metadata needed to use them."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from effssl.augment.center import center_square
from effssl.augment.color import normalize
from effssl.augment.crop import center_boxes, crop_resize
from effssl.augment.pixel_format import LIMITS, PixelFormat
from effssl.data.image_files import upright_rgb
from effssl.network.encoders import SMALL_IMAGE, Encoder, build_encoder
from effssl.network.options import LARGEST_SIDE, STEMS, ReadoutOptions
from effssl.network.readout import Readout
from effssl.runtime.errors import RequestError
from effssl.runtime.reading import check_regular, describe, one_line, parse_json
from effssl.schema import build, check

READOUT = "readout."  # prefix of the readout's tensors in an encoder file
CLASSIFIER = "effssl_classifier."  # of a classifier on the features that an encoder file may hold; no network has it
FILTERS = ("bilinear", "bicubic")
AT_ONCE = 8  # images that are resized at a time
FLOAT32 = torch.finfo(torch.float32).max
CENTER = 0.875  # crop share: the usual "resize 256, center crop 224"


class LoadedEncoder(nn.Module):
    """A trained encoder with its preprocessing: `features = encoder(images)`.

    images: N×C×H×W, any size; uint8, uint16 or float in [0, 1], or in their own range of an encoder that was trained on
    floats. They are center-cropped, resized and normalized as in training. `encoder.backbone` is the plain torchvision
    (or timm) module.
    """

    def __init__(self, encoder: Encoder, about: dict[str, Any]) -> None:
        super().__init__()
        self.encoder, self.about = encoder, about
        self.size: int = about["image_size"]
        self.filter: str = about.get("filter", "bilinear")
        # Side of the center crop as a share of the shorter side: all of it for small images, else the usual share.
        self.share: float = about.get("share", 1.0 if self.size <= SMALL_IMAGE else CENTER)
        self.pixels = pixels_of(about)
        self.projector: nn.Module | None = None

    @property
    def dim(self) -> int:
        """Width of the features."""
        return self.encoder.dim

    @property
    def backbone(self) -> nn.Module:
        """The network without preprocessing; its state dict has the key names of its library."""
        return self.encoder.backbone

    @property
    def device(self) -> torch.device:
        """The device that holds the weights."""
        return self.encoder.device

    def preprocess(self, images: Tensor) -> Tensor:
        """Raw images N×C×H×W → normalized N×C×size×size."""
        if images.dtype == torch.uint8 and self.pixels.is_picture and images.shape[-2:] != (self.size, self.size):
            images = self._center(images)
        return self.normalized(self.scaled(images))

    def _center(self, images: Tensor) -> Tensor:
        """Center squares of pictures; a few at a time, because double precision takes eight times their memory."""
        some = images.cpu() if images.device.type == "mps" else images  # which has no double precision
        parts = [center_square(part, self.size, self.share, self.filter) for part in some.split(AT_ONCE)]
        return torch.cat(parts).to(images.device, torch.uint8)

    def scaled(self, images: Tensor) -> Tensor:
        """Raw images as floats between 0 and 1."""
        if images.dtype == torch.uint8 and self.pixels.is_picture:
            return images.float() / 255
        name = str(images.dtype).removeprefix("torch.")
        depth = name if name in LIMITS else "float32"
        low, high = self.pixels.range_in(PixelFormat(images.shape[1], depth, LIMITS[depth]))  # type: ignore[arg-type]
        x = images.float()
        return x if (low, high) == (0, 1) else (x - low) / (high - low)

    def normalized(self, x: Tensor) -> Tensor:
        """Images N×C×H×W between 0 and 1 → normalized N×C×size×size."""
        x = x.expand(-1, self.pixels.channels, -1, -1) if x.shape[1] == 1 else x
        if x.shape[-2:] != (self.size, self.size):
            sizes = torch.tensor(x.shape[-2:]).expand(len(x), 2)
            x = crop_resize(x, center_boxes(sizes, self.share).to(x.device), self.size, filter=self.filter)
            x = x.clamp(0, 1) if self.filter == "bicubic" else x  # cubic filters overshoot
        return normalize(x, tuple(self.about["mean"]), tuple(self.about["std"]))

    def forward(self, images: Tensor) -> Tensor:
        return self.encoder(self.preprocess(images).contiguous(memory_format=torch.channels_last))

    def with_transform(self, share: float, filter: str) -> LoadedEncoder:
        """The same encoder with another test transform: crop share of the shorter side, and filter."""
        other = copy.copy(self)
        other.share, other.filter = share, filter
        return other

    def without_whitening(self) -> LoadedEncoder:
        """The same encoder with h as its features; itself where they are not whitened."""
        if self.encoder.readout is None:
            return self
        plain = {key: value for key, value in self.about.items() if key != "readout"}
        return freeze(Encoder(self.encoder.backbone, self.encoder.h_dim), plain)

    def project(self, h: Tensor) -> Tensor:
        """z = g(h), where the run folder holds the projector: N×z_dim."""
        if self.projector is None:
            raise RequestError("this encoder has no projector; only the encoder of a run folder can have one")
        return self.projector(h)

    def embed(self, images: list[Image.Image]) -> Tensor:
        """Features of PIL images of any size, N×dim; only of encoders that read RGB."""
        if self.pixels.channels != 3:
            raise RequestError(f"this encoder takes {self.pixels}, not PIL images; give an array N×C×H×W to encoder(…)")
        with torch.inference_mode():
            return torch.cat([self(pil_to_tensor(upright_rgb(image))[None].to(self.device)).cpu() for image in images])

    def fingerprint(self) -> str:
        """A short digest of all weights and buffers."""
        return digest_of(self.encoder.state_dict())


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """A short digest of tensors and their names."""
    digest = hashlib.blake2b(digest_size=8)
    for key, value in sorted(tensors.items()):
        digest.update(key.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def pil_to_tensor(image: Image.Image) -> Tensor:
    """An RGB image as uint8 3×H×W."""
    import numpy as np

    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def dump_encoder(encoder: Encoder, about: dict[str, Any], classifier: Mapping[str, Tensor] | None = None) -> bytes:
    """The bytes of encoder.safetensors: weights and metadata; on request with a classifier, described in `about`."""
    tensors = encoder.backbone.state_dict()
    tensors |= {CLASSIFIER + key: value for key, value in (classifier or {}).items()}
    if encoder.readout is not None:
        tensors |= {READOUT + key: value for key, value in encoder.readout.state_dict().items()}
        about = about | {"readout": asdict(encoder.readout.options)}
    tensors = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    # One key: safetensors writes several in a random order, and equal encoders should be equal files.
    return save(tensors, metadata={"effssl": json.dumps(about | {"digest": content_digest(about, tensors)})})


def content_digest(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """A digest of all that an encoder file holds: one flipped bit may cost most of the accuracy."""
    digest = hashlib.sha256(json.dumps(about).encode())
    for key, value in sorted(tensors.items()):
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_weights(tensors: Mapping[str, Tensor], source: object) -> None:
    """Refuse weights that no network can be used with: complex, sparse, without values, or not finite."""
    for key, value in tensors.items():
        if value.is_complex() or value.layout != torch.strided or value.is_meta or value.is_quantized:
            raise RequestError(f"{source}: {key} is not a plain tensor of real numbers")
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise RequestError(f"{source}: {key} has values that are not finite; the encoder cannot be used")


def is_encoder_file(path: Path) -> bool:
    """Whether a file is an encoder file written by effssl."""
    try:
        with safe_open(str(path), framework="pt") as file:
            return "effssl" in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def load_encoder(path: str | Path) -> LoadedEncoder:
    """Load an encoder file written by effssl; frozen and in eval mode."""
    about, tensors = _read_encoder_file(Path(path))
    about.pop("classifier", None)  # the features do not depend on it
    tensors = {key: value for key, value in tensors.items() if not key.startswith(CLASSIFIER)}
    try:
        encoder = build_encoder(about["encoder"], about["image_size"], about["stem"], len(about["mean"]))
        of_readout = {key: tensors.pop(key) for key in list(tensors) if key.startswith(READOUT)}
        encoder.backbone.load_state_dict(tensors)
        if of_readout:
            joined = len(of_readout[f"{READOUT}whitening.mean"])
            readout = Readout(ReadoutOptions(**about["readout"]), joined, len(about["mean"]))
            readout.load_state_dict({key.removeprefix(READOUT): value for key, value in of_readout.items()})
            encoder.readout = readout
    except (RuntimeError, TypeError, KeyError, AttributeError) as error:  # weights of another architecture
        raise RequestError(f"{path}: its weights do not fit its description: {describe(error)}") from None
    return freeze(encoder, about)


def read_classifier(path: str | Path) -> tuple[Any, dict[str, Tensor]]:
    """Description and tensors of the classifier in an encoder file; None and no tensors where it has none."""
    about, tensors = _read_encoder_file(Path(path))
    of_classifier = {key: value for key, value in tensors.items() if key.startswith(CLASSIFIER)}
    return about.get("classifier"), {key.removeprefix(CLASSIFIER): value for key, value in of_classifier.items()}


def _read_encoder_file(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Description and weights of an encoder file, both checked."""
    try:
        check_regular(path)
        with safe_open(str(path), framework="pt") as file:
            about = parse_json((file.metadata() or {})["effssl"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        check_about(about)
    except FileNotFoundError:
        raise RequestError(f"no encoder at {path}") from None
    except (SafetensorError, KeyError, OSError, ValueError) as error:
        raise RequestError(f"{path} is not an encoder file of effssl: {describe(error)}") from None
    check_weights(tensors, path)
    stored = about.pop("digest", "")
    if stored and stored != content_digest(about, tensors):
        raise RequestError(f"{path} is damaged: its content does not have the digest that was stored with it")
    return about, tensors


def check_about(about: Any) -> None:
    """Refuse a description of an encoder that lacks something, with a ValueError."""
    if not isinstance(about, dict):
        raise ValueError("its description is not a mapping")
    if not all(isinstance(about.get(key), str) for key in ("encoder", "stem")):
        raise ValueError("its description names no encoder or no stem")
    if about["stem"] not in STEMS:
        raise ValueError(f"its stem is {one_line(about['stem'])!r}, not one of {', '.join(STEMS)}")
    size, share = about.get("image_size"), about.get("share", 1.0)
    if type(size) is not int or not 1 <= size <= LARGEST_SIDE:
        raise ValueError(f"its image size is {one_line(size)}; it must be between 1 and {LARGEST_SIDE}")
    if type(share) not in (int, float) or not 0 < share <= 1 or about.get("filter", "bilinear") not in FILTERS:
        raise ValueError("its test transform is not known")
    channels = pixels_of(about).channels
    for key, low in (("mean", -math.inf), ("std", 0.0)):
        values = about.get(key)
        if not isinstance(values, (list, tuple)) or [type(v) in (int, float) for v in values] != [True] * channels:
            raise ValueError(f"its {key} is not {'three' if channels == 3 else channels} numbers")
        if not all(low < v < FLOAT32 for v in values):
            raise ValueError(f"its {key} is {one_line(list(values))}")


def pixels_of(about: Mapping[str, Any]) -> PixelFormat:
    """The pixels that an encoder was trained on; pictures where its description says nothing else."""
    given = about.get("pixels", {})
    if not isinstance(given, Mapping):
        raise ValueError("its pixels are not described")
    pixels = build(PixelFormat, given, "its pixels")
    check(pixels, "its pixels.")
    if not pixels.range[0] < pixels.range[1]:
        raise ValueError(f"its pixels.range is {list(pixels.range)}")
    return pixels


def freeze(encoder: Encoder, about: dict[str, Any]) -> LoadedEncoder:
    """Add the preprocessing to an encoder; frozen and in eval mode."""
    if about.get("renormalizes"):  # two models of torchvision normalize once more with their pretrained weights
        encoder.backbone.transform_input = True  # type: ignore[assignment]
    loaded = LoadedEncoder(encoder, about).requires_grad_(False)
    return loaded.to(memory_format=torch.channels_last).eval()
