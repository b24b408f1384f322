"""effssl saliency RUN: saliency maps that crops can follow."""

from __future__ import annotations

from typing import Literal


def saliency(run: str, /, out: str, data: str = "", target: Literal["label", "predicted"] = "label") -> None:
    """Write Grad-CAM maps of all training images, for `effssl pretrain --augment.saliency`.

    Args:
        run: run folder of an encoder that was trained with a classifier, e.g. --objective supervised
        out: .npz file to write
        data: another data set than the run's own
        target: the class that a map explains
    """
    from effssl.data import open_data
    from effssl.evaluation.saliency import saliency_maps
    from effssl.verbs import Run

    source = Run(run)
    images = open_data(data) if data else source.data()
    print(f"maps: {saliency_maps(source.encoder(), source.classifier(), images, out, target)}")
