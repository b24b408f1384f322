"""effssl saliency ENCODER: saliency maps that crops can follow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from effssl.runtime.errors import RequestError

if TYPE_CHECKING:
    from torch import nn

    from effssl.data import Data
    from effssl.network.loaded import LoadedEncoder


def saliency(
    source: str,
    /,
    out: str,
    data: str = "",
    classes: str = "",
    target: Literal["label", "predicted"] = "label",
    encoder: str = "",
) -> None:
    """Write Grad-CAM maps of all training images, for `effssl pretrain --augment.saliency`.

    Args:
        source: an encoder trained with labels: run folder, weight file, or name (resnet50, timm:resnet50)
        out: .npz file to write
        data: another data set than the run's own; needed where the encoder is no run
        classes: class folders of --data to read, as in effssl pretrain: imagenet100, or a file with their names
        target: the class that a map explains; a label needs a classifier of the data's classes, or one is fitted
        encoder: architecture of a weight file
    """
    from effssl.evaluation.saliency import saliency_maps

    network, classifier, images = opened(source, data, classes, encoder)
    if classifier is not None and target == "label":
        classifier = for_classes(classifier, images, data, classes)
    print(f"maps: {saliency_maps(network, classifier, images, out, target)}")


def opened(source: str, data: str, classes: str, encoder: str) -> tuple[LoadedEncoder, nn.Linear | None, Data]:
    """Encoder, its classifier where it has one, and the images."""
    from effssl.data import open_data
    from effssl.loading import load
    from effssl.network.foreign import open_classifier
    from effssl.verbs import Run

    if Path(source).expanduser().is_dir():
        run = Run(source)
        if encoder:
            raise RequestError(f"{source} is a run folder and needs no --encoder; leave it out")
        images = open_data(data, classes=classes) if data else run.data()
        return run.encoder().without_whitening(), run.classifier(), images
    if not data:
        raise RequestError(f"{source} is no run folder, so --data is needed: the images to write maps of")
    network = load(source, encoder=encoder, whiten="off")
    return network, open_classifier(source, network.encoder.h_dim), open_data(data, classes=classes)


def for_classes(classifier: nn.Linear, images: Data, data: str, classes: str) -> nn.Linear | None:
    """The outputs of a classifier for the classes of the data; None if it was trained on other classes.

    With --classes it may have been trained on all class folders of the data: ImageNet's 1,000, of which 100 are read.
    """
    from torch import nn

    from effssl.data import open_data

    names = images.train.classes
    known = names if classifier.out_features == len(names) or not classes else open_data(data).train.classes
    if classifier.out_features != len(known):
        return None
    rows = [known.index(name) for name in names]
    chosen = nn.Linear(classifier.in_features, len(rows))
    chosen.load_state_dict({"weight": classifier.weight[rows], "bias": classifier.bias[rows]})
    return chosen.requires_grad_(False)
