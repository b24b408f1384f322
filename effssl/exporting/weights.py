"""Targets whose file holds only weights; the library that reads them builds the network."""

from __future__ import annotations

import io
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from effssl.exporting import inputs
from effssl.exporting.exported_file import Exportable, ExportedFile
from effssl.network.encoders import (
    CLASSIFIERS,
    first_convolution,
    has_small_stem,
    timm_arguments,
    timm_name,
    torchvision_arguments,
)
from effssl.network.loaded import LoadedEncoder, dump_encoder
from effssl.network.options import patch_filters, pixels_side
from effssl.network.small import small_width
from effssl.runtime.errors import RequestError

# Networks with the same state dict keys, and the same function, in timm and torchvision.
SAME_IN_TIMM = (
    "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "wide_resnet101_2",
    "resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d",
)  # fmt: skip
FROM_NUMPY = "torch.from_numpy(images).float()"
TORCH = ["import torch", "with torch.inference_mode():"]
SMALL_STEM = [
    "model.conv1 = torch.nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)  # stem for small images",
    "model.maxpool = torch.nn.Identity()",
]


def torchvision(source: Exportable, file: str) -> ExportedFile:
    """A .pth state dict with torchvision's keys, without the classifier."""
    loaded = source.loaded
    name = loaded.about["encoder"]
    if _is_ours(name) or name.startswith("timm:"):
        raise RequestError(f"torchvision has no {name} network; export to {_alternatives(loaded)}")
    arguments = torchvision_arguments(name, loaded.size)
    if loaded.about.get("renormalizes"):
        arguments["transform_input"] = True
    content = io.BytesIO()
    torch.save(_tensors(loaded), content)
    return ExportedFile(
        content.getvalue(),
        [
            "import torch",
            "import torchvision",
            f'model = torchvision.models.get_model("{name}", weights=None{_arguments(arguments)})',
            *_stem(loaded),
            f"model.{_classifier(loaded.backbone)} = torch.nn.Identity()",
            f'model.load_state_dict(torch.load("{file}", weights_only=True))',
            "model.eval()",
        ],
        _normalized(loaded),
        [*inputs.resized_code(loaded), *_normalize_code(loaded)],
        [*TORCH, f"    features = model({FROM_NUMPY})"],
    )


def timm(source: Exportable, file: str) -> ExportedFile:
    """A safetensors file with timm's keys, without the classifier."""
    loaded = source.loaded
    given = loaded.about["encoder"]
    name = given.removeprefix("timm:")
    if not given.startswith("timm:") and name not in SAME_IN_TIMM:
        raise RequestError(f"timm has no {name} network with these keys; export to {_alternatives(loaded)}")
    mean, std = tuple(loaded.about["mean"]), tuple(loaded.about["std"])
    preprocessing = (
        f"preprocessing = dict(input_size={(loaded.pixels.channels, loaded.size, loaded.size)}, "
        f"crop_pct={loaded.share:g}, "
        f'interpolation="{loaded.filter}", mean={mean}, std={std})'
    )
    arguments = f"num_classes=0, pretrained_cfg_overlay=preprocessing{_arguments(timm_arguments(name, loaded.size))}"
    if _stem(loaded):
        create = [
            f'model = timm.create_model("{timm_name(name)}", {arguments})',
            *_stem(loaded),
            f'timm.models.load_checkpoint(model, "{file}")',
        ]
    else:
        create = [f'model = timm.create_model("{timm_name(name)}", {arguments}, checkpoint_path="{file}")']
    code = ["import timm", "import torch", preprocessing, *create, "model.eval()"]
    if loaded.pixels.is_picture:
        transform = "transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))"
        pixels, images = [transform, "images = transform(image)[None]"], "images"
    else:
        pixels, images = [*inputs.resized_code(loaded), *_normalize_code(loaded)], FROM_NUMPY
    features = [*TORCH, f"    features = model({images})"]
    return ExportedFile(save(_tensors(loaded)), code, _normalized(loaded), pixels, features)


def safetensors(source: Exportable, file: str) -> ExportedFile:
    """Weights and preprocessing, as `effssl.load` reads them."""
    loaded, channels = source.loaded, source.loaded.pixels.channels
    pixels: list[str] = []
    if loaded.pixels.is_picture:
        of, features = "uint8 or float in [0, 1]", ["features = model.embed([image])"]
    else:
        of = f"{loaded.pixels}, or float in [0, 1]"
        pixels = ["import torch", f"images = torch.zeros(1, {channels}, 64, 64)  # your images, of any size"]
        features = ["features = model(images)"]
    return ExportedFile(
        dump_encoder(loaded.encoder, loaded.about),
        ["import effssl", f'model = effssl.load("{file}")'],
        f"images N×{channels}×H×W of any size, {of}; it crops, resizes and normalizes them",
        pixels,
        features,
        normalizes=True,
        resizes=True,
    )


def _normalized(loaded: LoadedEncoder) -> str:
    return f"normalized images, {inputs.resized_shape(loaded)}"


def _normalize_code(loaded: LoadedEncoder) -> list[str]:
    columns = [f"{name} = numpy.array({list(loaded.about[name])}).reshape(-1, 1, 1)" for name in ("mean", "std")]
    return [*columns, "images = (images - mean) / std"]


def _tensors(loaded: LoadedEncoder) -> dict[str, Tensor]:
    return {key: value.detach().cpu().contiguous() for key, value in loaded.backbone.state_dict().items()}


def _is_ours(name: str) -> bool:
    """Whether an encoder exists in effssl only."""
    return bool(small_width(name) or patch_filters(name) or pixels_side(name))


def _stem(loaded: LoadedEncoder) -> list[str]:
    """Code that changes a library's network into one with this stem and these channels."""
    small = has_small_stem(loaded.about["encoder"], loaded.size, loaded.about["stem"])
    lines = SMALL_STEM if small else []
    found = first_convolution(loaded.backbone)
    if loaded.pixels.channels == 3 or found is None:
        return lines
    key, first = found
    arguments = {name: getattr(first, name) for name in ("kernel_size", "stride", "padding")}
    arguments["bias"] = first.bias is not None
    conv = f"torch.nn.Conv2d({first.in_channels}, {first.out_channels}{_arguments(arguments)})"
    return [*lines, f'model.set_submodule("{key}", {conv})']


def _classifier(backbone: nn.Module) -> str:
    """The attribute of a torchvision model that held its last linear layer, as Python code."""
    for name in CLASSIFIERS:
        layer = getattr(backbone, name, None)
        if isinstance(layer, nn.Identity):
            return name
        if isinstance(layer, nn.Sequential) and len(layer) and isinstance(layer[-1], nn.Identity):
            return f"{name}[-1]"
    raise TypeError(f"{type(backbone).__name__} still has its classifier")


def _alternatives(loaded: LoadedEncoder) -> str:
    name = loaded.about["encoder"]
    own = ["timm"] if name.startswith("timm:") else [] if _is_ours(name) else ["torchvision"]
    return ", ".join([*own, "safetensors", "onnx or pt2"])


def _arguments(arguments: dict[str, Any]) -> str:
    """Further arguments of a call, as Python code."""
    return "".join(f", {name}={value!r}" for name, value in arguments.items())
