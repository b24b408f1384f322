"""A run, or a comparison of runs, as small HTML for a notebook: a table and a picture."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from effssl.report.comparison import compare
from effssl.report.summary import summarize
from effssl.run import RunFolder
from effssl.runtime.notebook import table_html

WIDTH, HEIGHT, DPI = 4.2, 2.1, 80  # of a picture, in inches: two are beside each other
PICTURES = {"loss": "loss", "knn": "kNN, validation, %"}


def run_html(run: RunFolder) -> str:
    """What a run is, how it is doing, its scores, and its loss and kNN by epoch."""
    found = summarize(run)
    rows = [(name, text) for name, text in found["about"].items() if text]
    rows += [("epochs", f"{found['epoch']} of {found['epochs']}"), (found["verdict"], found["why"])]
    rows += [(score["name"], f"{score['value']:.1f} {score['unit']} ({score['how']})") for score in found["scores"]]
    return table_html(str(run.folder), rows) + pictures({found["name"]: found["curves"]})


class Comparison:
    """Runs side by side: their scores, their cost, the settings that differ. A notebook shows it as a table."""

    def __init__(self, *runs: RunFolder | str | Path) -> None:
        self.runs = [run if isinstance(run, RunFolder) else RunFolder(run) for run in runs]
        self._found = compare(self.runs)

    @property
    def names(self) -> list[str]:
        """The runs, by the last parts of their folders."""
        return [run["name"] for run in self._found["runs"]]

    @property
    def scores(self) -> dict[str, list[float | None]]:
        """The scores of each run by name; None where a run has none."""
        return {name: [cell and cell["value"] for cell in cells] for name, cells in self._found["scores"]}

    @property
    def differences(self) -> dict[str, list[str]]:
        """The settings that differ, as each run has them."""
        return {name: list(values) for name, values in self._found["differences"]}

    def __repr__(self) -> str:
        scores = [f"{name}: {', '.join(map(_score, values))}" for name, values in self.scores.items()]
        return f"Comparison of {', '.join(self.names)}\n" + "\n".join(scores)

    def _repr_html_(self) -> str:
        rows: list[tuple[str, ...]] = [(name, *map(_score, values)) for name, values in self.scores.items()]
        rows += [(name, *map(str, values)) for name, values in self._found["costs"]]
        rows += [(name, *values) for name, values in self.differences.items()]
        curves = {run["name"]: run["curves"] for run in self._found["runs"]}
        return table_html("", rows, ["", *self.names]) + pictures(curves)


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} %"


def pictures(curves: Mapping[str, Mapping[str, Any]]) -> str:
    """Loss and kNN by epoch, a line for each run; nothing where there is nothing to show."""
    found = []
    for key, title in PICTURES.items():
        lines = {
            name: (one["x"]["epoch"], one["columns"][key]) for name, one in curves.items() if key in one["columns"]
        }
        if lines:
            image = base64.b64encode(_picture(title, lines)).decode()
            found.append(f'<img alt="{html.escape(title)}" src="data:image/png;base64,{image}" style="display:inline">')
    return "".join(found)


def _picture(title: str, lines: Mapping[str, tuple[Sequence[float], Sequence[float | None]]]) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Not by pyplot, whose state and backend belong to the user.
    figure = Figure((WIDTH, HEIGHT), DPI, layout="constrained")
    axes = figure.add_subplot(title=title, xlabel="epoch")
    for name, (x, values) in lines.items():
        known = [(at, value) for at, value in zip(x, values, strict=True) if value is not None]
        axes.plot([at for at, _ in known], [value for _, value in known], marker=".", label=name)
    if len(lines) > 1:
        axes.legend(fontsize="small")
    file = io.BytesIO()
    FigureCanvasAgg(figure).print_png(file)
    return file.getvalue()
