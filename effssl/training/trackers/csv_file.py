"""metrics.csv in the run folder: the lines of metrics.jsonl as a table for spreadsheets and pandas."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from effssl.run import RunFolder
from effssl.runtime.files import write_atomically
from effssl.training.trackers.tracker import Ending, Line, TrackedRun


class CsvTracker:
    """Writes the whole table with every line: a later line may have columns that the first ones lack."""

    def __init__(self) -> None:
        self.run: RunFolder | None = None

    def open(self, run: TrackedRun) -> dict[str, str]:
        """Remember the folder."""
        self.run = RunFolder(run.folder)
        return {}

    def write(self, line: Line) -> None:
        """Write metrics.csv again; the line is in metrics.jsonl already."""
        self._write()

    def close(self, ending: Ending) -> None:
        """Write metrics.csv once more, with the lines of epochs that were trained again."""
        self._write()

    def _write(self) -> None:
        if self.run is not None:
            write_atomically(self.run.folder / "metrics.csv", as_csv(self.run.metrics()))


def as_csv(lines: Sequence[Line]) -> str:
    """A table of lines; a value that a line lacks is empty.

    >>> as_csv([{"epoch": 0, "knn": 30.5}, {"epoch": 1, "loss": 2.0}])
    'epoch,knn,loss\\n0,30.5,\\n1,,2.0\\n'
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for line in lines for name in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
