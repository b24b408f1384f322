"""effssl saliency RUN: maps for crops."""

from __future__ import annotations

from typing import Literal


def saliency(run: str, /, out: str, data: str = "", target: Literal["label", "predicted"] = "label") -> None:
    """Store Grad-CAM maps of all training images, for `effssl pretrain --augment.saliency`.

    Args:
        run: run folder of an encoder trained with the supervised term
        out: .npz file to write
        data: another data set than the run's own
        target: the class that a map explains
    """
    from effssl.data import open_data
    from effssl.evaluation.saliency import saliency_maps
    from effssl.run import Run

    source = Run(run)
    print(f"maps: {saliency_maps(source, open_data(data) if data else source.data(), out, target)}")
