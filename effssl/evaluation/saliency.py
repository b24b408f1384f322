"""Saliency maps by Grad-CAM from a network that was trained with labels. Selvaraju et al. 2017."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from effssl.augment.color import normalize
from effssl.augment.crop import resize
from effssl.data import Data
from effssl.data.loader import clean_batches, whole_boxes
from effssl.run import Run
from effssl.runtime.errors import RequestError
from effssl.runtime.files import check_output
from effssl.runtime.progress import counter

BATCH = 100


def saliency_maps(run: Run, data: Data, out: str | Path, target: str = "label") -> Path:
    """Grad-CAM maps of the last block for each training image's class, stored for `--augment.saliency`.

    `run` was trained with the supervised term. Each map spreads over its whole image, N×h×h. `target` is the class
    a map explains: the image's label, or the one that the network predicted.
    """
    try:
        from captum.attr import LayerGradCam
    except ImportError:
        raise RequestError("saliency maps need captum: pip install captum") from None
    out, labels = Path(out), data.train.labels
    if out.exists():
        raise RequestError(f"{out} exists; choose another --out")
    check_output(out, overwrite=True)
    if labels is None:
        raise RequestError(f"{data.name} has no labels, which Grad-CAM needs")
    encoder, classifier, classes = run.encoder(), run.classifier(), len(data.train.classes)
    if classifier.out_features != classes:
        raise RequestError(f"{run.folder} knows {classifier.out_features} classes, {data.name} has {classes}")
    model = nn.Sequential(encoder.backbone, classifier).eval()
    cam = LayerGradCam(model, encoder.backbone.layer4)
    maps = []
    with counter("saliency", len(data.train)) as advance:
        for pixels, rows in clean_batches(data.train, encoder.size, whole_boxes, BATCH):
            x = resize(pixels, encoder.size) / 255
            x = normalize(x, tuple(encoder.about["mean"]), tuple(encoder.about["std"])).requires_grad_()
            classes_shown = labels[rows] if target == "label" else model(x.detach()).argmax(1)
            part = cam.attribute(x, target=classes_shown, relu_attributions=True)
            maps.append(part.detach().squeeze(1).half())
            advance(len(rows))
    missing = len(data.train) - sum(map(len, maps))
    if missing:
        raise RequestError(f"{missing} images cannot be decoded; take them out of {data.name} first")
    stack = torch.cat(maps)
    np.savez(out, maps=stack.numpy(), fingerprint=data.train.fingerprint())
    return out
