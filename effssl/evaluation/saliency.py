"""Saliency maps by Grad-CAM from a network that was trained with labels. Selvaraju et al. 2017."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from torch import nn

from effssl.augment.color import normalize
from effssl.data import Data
from effssl.data.images import crop_batches, whole_boxes
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError
from effssl.runtime.files import check_output, write_atomically
from effssl.runtime.progress import progress_bar

BATCH = 100


def saliency_maps(
    encoder: LoadedEncoder, classifier: nn.Linear, data: Data, out: str | Path, target: str = "label"
) -> Path:
    """Write Grad-CAM maps of the encoder's last block for each training image, for `--augment.saliency`.

    The classifier was trained on the encoder's features. Each map covers its whole image, N×h×h. `target` is the class
    that a map explains: the image's label, or the predicted one.
    """
    try:
        from captum.attr import LayerGradCam
    except ImportError:
        raise RequestError("saliency maps need captum: pip install captum") from None
    out, labels = Path(out), data.train.labels
    if out.suffix != ".npz":
        raise RequestError(f"--out is {out}; the name of a file of saliency maps ends with .npz")
    check_output(out, overwrite=False)
    if labels is None:
        raise RequestError(f"{data.name} has no labels, which Grad-CAM needs")
    classes = len(data.train.classes)
    if classifier.out_features != classes:
        raise RequestError(f"the classifier has {classifier.out_features} classes, {data.name} has {classes}")
    model = nn.Sequential(encoder.backbone, classifier).eval()
    cam = LayerGradCam(model, encoder.backbone.layer4)
    maps = []
    with progress_bar("saliency", len(data.train)) as advance:
        for pixels, rows in crop_batches(data.train, whole_boxes(data.train.sizes), encoder.size, BATCH):
            x = normalize(pixels, tuple(encoder.about["mean"]), tuple(encoder.about["std"])).requires_grad_()
            explained = labels[rows] if target == "label" else model(x.detach()).argmax(1)
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
