"""Saliency maps by Grad-CAM from a network that was trained with labels. Selvaraju et al. 2017."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from torch import nn

from effssl.augment.color import normalize
from effssl.data import Data
from effssl.data.images import Reading, crop_batches, whole_boxes
from effssl.features.extract import extract
from effssl.features.logistic import fit_quietly
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError
from effssl.runtime.files import check_output, write_atomically
from effssl.runtime.progress import progress_bar

BATCH = 100
ITERATIONS = 200  # of L-BFGS, where a classifier is fitted


def saliency_maps(
    encoder: LoadedEncoder, classifier: nn.Linear | None, data: Data, out: str | Path, target: str = "label"
) -> Path:
    """Write Grad-CAM maps of the encoder's last feature maps for each training image, for `--augment.saliency`.

    The classifier was trained on the encoder's features; without one, one is fitted to the labels of these images.
    Each map covers its whole image, N×h×h. `target` is the class that a map explains: the image's label, or the
    predicted one.
    """
    try:
        from captum.attr import LayerGradCam
    except ImportError:
        raise RequestError("saliency maps need captum: pip install captum") from None
    out, labels = Path(out), data.train.labels
    if out.suffix != ".npz":
        raise RequestError(f"--out is {out}; the name of a file of saliency maps ends with .npz")
    check_output(out, overwrite=False, instead="choose another --out, or delete it first")
    if labels is None and (target == "label" or classifier is None):
        raise RequestError(f"{data.name} has no labels; use an encoder with a classifier, and --target predicted")
    layer = last_maps(encoder)
    model = nn.Sequential(encoder.backbone, fitted(encoder, data) if classifier is None else classifier).eval()
    cam = LayerGradCam(model, layer)
    maps = []
    with progress_bar("saliency", len(data.train)) as advance:
        reading = Reading(pixels=encoder.pixels)
        for pixels, rows in crop_batches(data.train, whole_boxes(data.train.sizes), encoder.size, BATCH, reading):
            x = normalize(pixels, tuple(encoder.about["mean"]), tuple(encoder.about["std"])).requires_grad_()
            by_label = labels is not None and target == "label"
            explained = labels[rows] if by_label else model(x.detach()).argmax(1)  # type: ignore[index]
            part = cam.attribute(x, target=explained, relu_attributions=True)
            maps.append(part.detach().squeeze(1).half())
            advance(len(rows))
    missing = len(data.train) - sum(map(len, maps))
    if missing:
        raise RequestError(f"{missing} images cannot be decoded; take them out of {data.name} first")
    stack = torch.cat(maps)
    content = io.BytesIO()
    np.savez(content, maps=stack.numpy(), fingerprint=data.train.fingerprint())
    write_atomically(out, content.getvalue(), new=True)
    return out


def last_maps(encoder: LoadedEncoder) -> nn.Module:
    """The last module of an encoder that returns feature maps, N×C×h×h; of a ResNet its last block."""
    backbone = encoder.backbone
    if hasattr(backbone, "layer4"):
        return backbone.layer4  # type: ignore[return-value]
    outputs: list[tuple[nn.Module, torch.Size]] = []

    def note(module: nn.Module, _: object, output: object) -> None:
        if isinstance(output, torch.Tensor):
            outputs.append((module, output.shape))

    handles = [module.register_forward_hook(note) for module in backbone.modules()]
    with torch.no_grad():
        backbone(torch.zeros(1, encoder.pixels.channels, encoder.size, encoder.size, device=encoder.device))
    for handle in handles:
        handle.remove()
    # Tokens after the maps mean that these are only the patches that a transformer starts from.
    later = [(module, shape) for module, shape in outputs if len(shape) == 3 or (len(shape) == 4 and shape[2] > 1)]
    if not later or len(later[-1][1]) == 3 or later[-1][1][2] != later[-1][1][3]:
        raise RequestError(f"{encoder.about['encoder']} has no feature maps before its features, which Grad-CAM needs")
    return later[-1][0]


def fitted(encoder: LoadedEncoder, data: Data) -> nn.Linear:
    """A linear classifier of the data's labels on the encoder's features: logistic regression."""
    from sklearn.linear_model import LogisticRegression

    features = extract(encoder, data.train, "features for a classifier")
    assert features.labels is not None
    if len(features.labels.unique()) < len(data.train.classes) or len(data.train.classes) < 3:
        raise RequestError(f"{data.name} needs images of each of at least 3 classes, to which a classifier is fitted")
    model = fit_quietly(LogisticRegression(max_iter=ITERATIONS), features.h.numpy(), features.labels.numpy())
    layer = nn.Linear(features.h.shape[1], len(model.classes_))
    state = {"weight": torch.from_numpy(model.coef_), "bias": torch.from_numpy(model.intercept_)}
    layer.load_state_dict({key: value.float() for key, value in state.items()})
    return layer.requires_grad_(False).to(encoder.device)
