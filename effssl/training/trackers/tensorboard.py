"""TensorBoard: event files in the folder `tensorboard` of the run; `tensorboard --logdir runs` shows all runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from effssl.training.trackers.tracker import Ending, Line, TrackedRun, figures


class TensorBoardTracker:
    """Writes event files, a new one per process."""

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._create = SummaryWriter
        self._folder = Path()
        self._writer: Any = None

    def open(self, run: TrackedRun) -> dict[str, str]:
        """Event files belong together by their folder."""
        self._folder = run.folder / "tensorboard"
        return {}

    def write(self, line: Line) -> None:
        """Add the figures of a line."""
        values = figures(line)
        step = int(values.pop("step"))
        if self._writer is None:  # what a process that was killed had written from here on does not count
            self._writer = self._create(str(self._folder), purge_step=step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        if "verdict" in line:
            self._writer.add_text("verdict", f"{line['verdict']}: {line['why']}", step)
        self._writer.flush()

    def close(self, ending: Ending) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
