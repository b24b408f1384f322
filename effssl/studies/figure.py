"""The figure of a study: accuracy along its axis and against compute, or the signal-to-noise ratio over epochs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from effssl.studies.claims import compute, rise
from effssl.studies.runner import ArmResult
from effssl.studies.study import Measured, Study

STYLES = ("k-o", "C1-^", "C0-s", "C2-d", "C3-v")


def has_figure(study: Study) -> bool:
    """Whether a study has a figure: it has an axis, or shows the signal-to-noise ratio over epochs."""
    return bool(study.axis) or "snr" in study.metrics


def plot(study: Study, measured: Measured, results: Sequence[ArmResult]) -> bytes | None:
    """The figure as PNG; None for a study that has none."""
    if not has_figure(study):
        return None
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    labels = panel_labels(study)
    size = (5.2 * len(labels), 3.8)
    figure, axes = plt.subplots(1, len(labels), figsize=size, layout="constrained", squeeze=False)
    curves = dict.fromkeys(arm.curve for arm in measured.arms)
    for curve, style in zip(curves, STYLES, strict=False):
        if "snr" in study.metrics:
            _plot_snr(axes[0, 0], curve, style, results)
        else:
            _plot_curve(axes[0], study, measured, results, curve, style)
    for axis, (x, y) in zip(axes[0], labels, strict=True):
        axis.set(xlabel=x, ylabel=y)
        axis.grid(alpha=0.3)
    axes[0, 0].legend(frameon=False, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    plt.close(figure)
    return buffer.getvalue()


def panel_labels(study: Study) -> list[tuple[str, str]]:
    """What the two axes of every panel show."""
    if "snr" in study.metrics:
        return [("step, epochs", "signal-to-noise ratio")]
    accuracy = f"{study.metrics[0]} %"
    panels = [(study.axis, accuracy)] + [("TFLOP of training", accuracy)] * (study.axis == "epochs")
    return panels + [(study.axis, f"gain over the first point, {study.metrics[0]} %")] * study.rises


def _plot_curve(
    axes: Sequence[Any], study: Study, measured: Measured, results: Sequence[ArmResult], curve: str, style: str
) -> None:
    """One curve with its standard deviations; an arm without a position is a horizontal line."""
    metric = study.metrics[0]
    points = [(arm, list(measured.values[arm.name, metric].values())) for arm, _ in measured.curve(curve, metric)]
    if len(points) == 1 and points[0][0].at is None:
        axes[0].axhline(mean(points[0][1]), color=style[:2] if style[0] == "C" else "k", ls=":", label=curve)
        return
    y = [mean(values) for _, values in points]
    error = [stdev(values) if len(values) > 1 else 0.0 for _, values in points]
    epochs = {result.run.arm.name: result.run.flags["epochs"] for result in results}
    positions = [epochs[arm.name] if study.axis == "epochs" else arm.at for arm, _ in points]
    tflop = [compute(measured, arm) / 1e12 for arm, _ in points]
    for axis, x in zip(axes, (positions, tflop), strict=False):
        axis.errorbar(x, y, error, fmt=style, capsize=3, label=curve)
    if study.rises:
        axes[-1].plot(positions, list(rise(measured, curve, metric).values()), style, label=curve)


def _plot_snr(axis: Any, curve: str, style: str, results: Sequence[ArmResult]) -> None:
    for result in results:
        if result.run.arm.curve == curve and result.snr:
            label = curve if result.run.seed == 0 else None
            axis.plot(*zip(*result.snr, strict=True), style, label=label)
