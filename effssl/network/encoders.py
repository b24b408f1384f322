"""Encoders f by name: torchvision's classifiers (ResNets with a stem for small images), timm's, and small ones."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from effssl.network.options import DERIVED_STEMS, patch_filters, pixels_side
from effssl.network.patches import PatchEncoder, Pixels, region_means
from effssl.network.readout import Readout
from effssl.network.small import SmallEncoder, small_width
from effssl.network.transformers import block_stages, has_blocks
from effssl.runtime.errors import RequestError, did_you_mean

LARGE_IMAGE = 64  # side in pixels above which small encoders have a stem of stride 4
SMALL_IMAGE = 64  # side in pixels up to which a ResNet gets the stem for small images
REGIONS = 2  # a feature map becomes the means of 2×2 regions
RESNET_STAGES = ("layer1", "layer2", "layer3", "layer4")
SMALL_PATCHES = re.compile(r"vit_(?P<size>tiny|small|base)_patch(?P<side>[1-9]\d?)")
"""vit_tiny_patch4 and the like: timm's plain transformers with patches of another side, for small images."""
CLASSIFIERS = ("fc", "classifier", "head", "heads")  # torchvision's names of the last layer


class Encoder(nn.Module):
    """f: normalized images N×C×S×S → features h, N×h_dim; `stages()` lets terms share a part of it.

    `backbone` is the module whose state dict is saved, with the key names of its library. A finished encoder may have a
    `readout`, which joins and whitens features: then it gives N×dim numbers in place of h.
    """

    def __init__(self, backbone: nn.Module, dim: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.h_dim = dim
        self.readout: Readout | None = None
        self.frozen = 0  # first stages whose weights and batch norm statistics stay as they are

    @property
    def dim(self) -> int:
        """Width of what the encoder gives."""
        return self.h_dim if self.readout is None else self.readout.dim

    @property
    def device(self) -> torch.device:
        """The device that holds the weights."""
        return next(iter(self.state_dict().values()), torch.empty(0)).device

    @property
    def has_stages(self) -> bool:
        """Whether the backbone is a ResNet, whose stages have torchvision's names."""
        names = ("conv1", "bn1", "relu", "maxpool", "avgpool", *RESNET_STAGES)
        return all(hasattr(self.backbone, name) for name in names)

    def stages(self) -> list[nn.Module]:
        """The backbone as a sequence of modules.

        Stem and four blocks of a ResNet, embedding and blocks of a timm transformer, or the whole of another network.
        """
        b = self.backbone
        if has_blocks(b):
            return block_stages(b)
        if not self.has_stages:
            return [b]
        stem = nn.Sequential(b.conv1, b.bn1, b.relu, b.maxpool)  # type: ignore[arg-type]
        blocks = [getattr(b, name) for name in RESNET_STAGES]
        return [stem, *blocks[:-1], nn.Sequential(blocks[-1], b.avgpool, nn.Flatten(1))]  # type: ignore[arg-type]

    def freeze(self, stages: int, name: str) -> None:
        """Freeze the first stages: no gradient, and batch norm with its running statistics."""
        found = self.stages()
        if stages >= len(found):
            most = f"{len(found)} stages, and the last one has to learn" if len(found) > 1 else "no stages to freeze"
            raise RequestError(f"--freeze {stages}: {name} has {most}")
        self.frozen = stages
        for stage in found[:stages]:
            stage.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Encoder:
        """As every module, but frozen stages stay in eval mode."""
        super().train(mode)
        for stage in self.stages()[: self.frozen]:
            stage.eval()
        return self

    def joined(self, x: Tensor) -> Tensor:
        """h, and the means of 2×2 regions of the last two stages' maps, N×D; h alone where there are no stages."""
        if not self.has_stages:
            return self.backbone(x)
        *early, last = self.stages()
        for stage in early:
            x = stage(x)
        late = last[0](x)  # type: ignore[index]
        h = last[1:](late)  # type: ignore[index]
        return torch.cat([h, *(region_means(y, REGIONS).flatten(1) for y in (late, x))], 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.readout is None:
            return self.backbone(x)
        return self.readout(x, self.joined if self.readout.options.maps else self.backbone)


class JoinedMaps(nn.Module):
    """What `Encoder.joined` gives, as a module of its own."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder.joined(x)


def build_encoder(name: str, image_size: int, stem: str = "auto", channels: int = 3) -> Encoder:
    """Build a randomly initialized encoder by name; a stem that is computed from images is still zero."""
    if stem in DERIVED_STEMS and not small_width(name):
        raise RequestError(f"a stem of {stem} filters is for the encoders tiny and small, not for {name}")
    if width := small_width(name):
        kind = stem if stem in DERIVED_STEMS else "learned"
        small = SmallEncoder(width, name.startswith("small"), kind, image_size > LARGE_IMAGE, channels)
        return Encoder(small, small.dim)
    if side := pixels_side(name):
        return Encoder(Pixels(side), channels * side**2)
    if filters := patch_filters(name):
        patches = PatchEncoder(filters, channels=channels)
        return Encoder(patches, patches.dim)
    if name.startswith("timm:"):
        return _from_timm(name.removeprefix("timm:"), image_size, channels)
    if name not in model_names():
        raise RequestError(
            f"unknown encoder {name!r}{did_you_mean(name, model_names())}; "
            "use small, tiny, small-32 (wider), resnet18, resnet50, any torchvision classifier, timm:<name>, patches "
            "or pixels"
        )
    from torchvision import models

    with refused(name, image_size):
        model = models.get_model(name, weights=None, **torchvision_arguments(name, image_size))
    if has_small_stem(name, image_size, stem):
        model.conv1 = nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.maxpool = nn.Identity()
    _drop_classifier(model)
    take_channels(model, channels, name)
    return Encoder(model, feature_size(model, image_size, name, channels))


def first_convolution(model: nn.Module) -> tuple[str, nn.Conv2d] | None:
    """The name and the module of the convolution that reads the images."""
    return next(((key, module) for key, module in model.named_modules() if isinstance(module, nn.Conv2d)), None)


def take_channels(model: nn.Module, channels: int, name: str) -> None:
    """Let a network read images of other channels than three: its first convolution is replaced, with random weights.

    They are drawn with the deviation of those before, scaled so that responses are as large as those to three channels.
    """
    if channels == 3:
        return
    found = first_convolution(model)
    if found is None or found[1].in_channels != 3 or found[1].groups != 1:
        raise RequestError(
            f"{name} has no first convolution that could read {channels} channels; choose another encoder"
        )
    key, old = found
    kept = {name: getattr(old, name) for name in ("kernel_size", "stride", "padding", "dilation")}
    new = nn.Conv2d(channels, old.out_channels, **kept, bias=old.bias is not None)
    nn.init.normal_(new.weight, std=float(old.weight.detach().std()) * (3 / channels) ** 0.5)
    if new.bias is not None and old.bias is not None:
        new.bias = old.bias
    parent, _, child = key.rpartition(".")
    setattr(model.get_submodule(parent), child, new)


def torchvision_arguments(name: str, image_size: int) -> dict[str, Any]:
    """Arguments for torchvision's constructor."""
    if name in ("googlenet", "inception_v3"):
        return {"init_weights": True, "aux_logits": False}
    return {"image_size": image_size} if name.startswith("vit_") else {}


def timm_arguments(name: str, image_size: int) -> dict[str, Any]:
    """Arguments for timm's constructor."""
    arguments: dict[str, Any] = {"img_size": image_size} if _takes_size(name) else {}
    if _is_plain_vit(name):
        arguments["dynamic_img_size"] = True  # views of other sizes: position embeddings are interpolated
    if patches := SMALL_PATCHES.fullmatch(name):
        arguments["patch_size"] = int(patches["side"])
    return arguments


def timm_name(name: str) -> str:
    """timm's own name of a model; ours may say the side of its patches.

    >>> timm_name("vit_tiny_patch4"), timm_name("resnet18")
    ('vit_tiny_patch16_224', 'resnet18')
    """
    patches = SMALL_PATCHES.fullmatch(name)
    return f"vit_{patches['size']}_patch16_224" if patches else name


def _is_plain_vit(name: str) -> bool:
    from timm.models import model_entrypoint

    return model_entrypoint(timm_name(name)).__module__ == "timm.models.vision_transformer"


def _takes_size(name: str) -> bool:
    """Whether a timm model is built for one image size, by the constructors in its module."""
    from timm.models import model_entrypoint

    file = sys.modules[model_entrypoint(timm_name(name)).__module__]
    networks = [kind for kind in vars(file).values() if isinstance(kind, type) and issubclass(kind, nn.Module)]
    return any({"img_size", "num_classes"} <= inspect.signature(kind).parameters.keys() for kind in networks)


def has_small_stem(name: str, image_size: int, stem: str) -> bool:
    """Whether the first convolution is 3×3 with stride 1, without pooling after it."""
    return name.startswith("resnet") and (stem == "small" or (stem == "auto" and image_size <= SMALL_IMAGE))


def model_names() -> list[str]:
    """Names of our own encoders and of torchvision's classifiers."""
    from torchvision import models

    return ["small", "tiny", "patches", "pixels", *models.list_models(module=models)]


def _drop_classifier(model: nn.Module) -> None:
    """Replace the last linear layer by the identity."""
    for attribute in CLASSIFIERS:
        layer = getattr(model, attribute, None)
        if isinstance(layer, nn.Linear):
            setattr(model, attribute, nn.Identity())
            return
        if isinstance(layer, nn.Sequential) and len(layer) and isinstance(layer[-1], nn.Linear):
            layer[-1] = nn.Identity()
            return
    raise RequestError(f"{type(model).__name__} has no final linear layer to remove; choose another encoder")


def check_timm_name(name: str) -> None:
    """Refuse a model that timm does not have, and pretrained weights of a tag that the model does not have."""
    try:
        import timm
    except ImportError:
        raise RequestError("timm:<name> encoders need timm: pip install timm") from None
    if not timm.is_model(timm_name(name)):
        near = did_you_mean(name, timm.list_models())
        raise RequestError(f"timm has no model named {name!r}{near}")
    model, _, tag = name.partition(".")
    try:
        timm.get_pretrained_cfg(timm_name(name))
    except RuntimeError:
        has = ", ".join(known.partition(".")[2] for known in timm.list_pretrained(f"{timm_name(model)}.*"))
        raise RequestError(f"timm has no weights {tag!r} of {model}; it has {has or 'none'}") from None


def _from_timm(name: str, image_size: int, channels: int) -> Encoder:
    check_timm_name(name)
    import timm

    with refused(f"timm:{name}", image_size):
        model = timm.create_model(timm_name(name), pretrained=False, num_classes=0, **timm_arguments(name, image_size))
    take_channels(model, channels, f"timm:{name}")
    return Encoder(model, feature_size(model, image_size, f"timm:{name}", channels))


def feature_size(model: nn.Module, image_size: int, name: str, channels: int = 3) -> int:
    """Width of a model's features, N×width for images N×C×size×size."""
    model.eval()
    with torch.no_grad(), refused(name, image_size):
        device = next((p.device for p in model.parameters()), None)
        features = model(torch.zeros(2, channels, image_size, image_size, device=device))
    model.train()
    if features.ndim != 2:
        raise RequestError(
            f"{name} gives features of shape {tuple(features.shape)} for 2 images; an encoder must return N×width"
        )
    return int(features.shape[1])


@contextmanager
def refused(name: str, image_size: int) -> Iterator[None]:
    """Turn a library's error about an image size into a one-line RequestError."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise RequestError(f"{name} does not take images of {image_size}×{image_size}: {reason}") from None
