"""Encoders f: torchvision's ResNets (with a stem for small images), other classifiers by name, and a small one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from effssl.errors import RequestError, did_you_mean
from effssl.network.small import SmallEncoder, small_width

SMALL_IMAGE = 64  # up to this many pixels a side a ResNet gets the stem for small images
RESNET_STAGES = ("layer1", "layer2", "layer3", "layer4")


class Encoder(nn.Module):
    """f: normalized images N×3×S×S → features h, N×dim, run in stages so that a part of it can be shared.

    `backbone` is the module whose state dict is saved; its key names are those of the library it comes from.
    """

    def __init__(self, backbone: nn.Module, dim: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.dim = dim

    def stages(self) -> list[nn.Module]:
        """The backbone cut into pieces that run one after another: stem and the four blocks of a ResNet, or one."""
        b = self.backbone
        if not all(hasattr(b, name) for name in ("conv1", "bn1", "relu", "maxpool", "avgpool", *RESNET_STAGES)):
            return [b]
        stem = nn.Sequential(b.conv1, b.bn1, b.relu, b.maxpool)  # type: ignore[arg-type]
        blocks = [getattr(b, name) for name in RESNET_STAGES]
        return [stem, *blocks[:-1], nn.Sequential(blocks[-1], b.avgpool, nn.Flatten(1))]  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.backbone(x)


def build_encoder(name: str, image_size: int, stem: str = "auto") -> Encoder:
    """Make a randomly initialized encoder by name."""
    if width := small_width(name):
        small = SmallEncoder(width)
        return Encoder(small, small.dim)
    if name.startswith("timm:"):
        return _from_timm(name.removeprefix("timm:"), image_size)
    if name not in model_names():
        raise RequestError(
            f"unknown encoder {name!r}{did_you_mean(name, model_names())}; "
            "use small, small-32 (wider), resnet18, resnet34, resnet50, any torchvision classifier, or timm:<name>"
        )
    from torchvision import models

    extra: dict[str, Any] = {"init_weights": True, "aux_logits": False} if name in ("googlenet", "inception_v3") else {}
    if name.startswith("vit_"):
        extra["image_size"] = image_size
    with refused(name, image_size):
        model = models.get_model(name, weights=None, **extra)
    if name.startswith("resnet") and (stem == "small" or (stem == "auto" and image_size <= SMALL_IMAGE)):
        model.conv1 = nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.maxpool = nn.Identity()
    _drop_classifier(model)
    return Encoder(model, _feature_size(model, image_size, name))


def model_names() -> list[str]:
    """Our own encoder and torchvision's classifiers."""
    from torchvision import models

    return ["small", *models.list_models(module=models)]


def _drop_classifier(model: nn.Module) -> None:
    """Replace the last linear layer, whatever a model calls it, by the identity."""
    for attribute in ("fc", "classifier", "head", "heads"):
        layer = getattr(model, attribute, None)
        if isinstance(layer, nn.Linear):
            setattr(model, attribute, nn.Identity())
            return
        if isinstance(layer, nn.Sequential) and len(layer) and isinstance(layer[-1], nn.Linear):
            layer[-1] = nn.Identity()
            return
    raise RequestError(f"{type(model).__name__} has no final linear layer to take off; it cannot serve as an encoder")


def _from_timm(name: str, image_size: int) -> Encoder:
    try:
        import timm
    except ImportError:
        raise RequestError("timm:<name> encoders need timm: pip install timm") from None
    if not timm.is_model(name):
        near = did_you_mean(name, timm.list_models())
        raise RequestError(f"timm has no model named {name!r}{near}")
    sizes: dict[str, Any] = {"img_size": image_size} if "vit" in name else {}
    with refused(f"timm:{name}", image_size):
        model = timm.create_model(name, pretrained=False, num_classes=0, **sizes)
    return Encoder(model, _feature_size(model, image_size, f"timm:{name}"))


def _feature_size(model: nn.Module, image_size: int, name: str) -> int:
    model.eval()
    with torch.no_grad(), refused(name, image_size):
        features = model(torch.zeros(2, 3, image_size, image_size))
    model.train()
    return int(features.shape[1])


@contextmanager
def refused(name: str, image_size: int) -> Iterator[None]:
    """Say in one line that a model and an image size do not go together."""
    try:
        yield
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise RequestError(f"{name} does not take images of {image_size}×{image_size}: {reason}") from None
