"""The journal of a run: one line per epoch in metrics.jsonl, in TensorBoard's event files and on the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from effssl.run import RunFolder
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import err, say

Line = dict[str, Any]


class Journal:
    """Whoever wants to know how a run is doing reads it here. Only one of many processes `writes`."""

    def __init__(self, quiet: bool = False, tensorboard: bool = False, writes: bool = True) -> None:
        self.quiet = quiet or not writes
        self.writes = writes
        self.run: RunFolder | None = None
        self.events = TensorBoardWriter() if tensorboard and writes else None

    def open(self, run: RunFolder) -> None:
        """Write to the files of this run from now on."""
        self.run = run
        if self.events is not None:
            self.events.folder = run.folder / "tensorboard"

    def say(self, text: str) -> None:
        """One line for the user."""
        if not self.quiet:
            say(text)

    def write(self, line: Line, epochs: int = 0) -> None:
        """Record a line; that of an epoch, out of so many, is shown too."""
        if self.writes and self.run is not None:
            self.run.log(line)
            if self.events is not None:
                self.events.write(line)
        # On a terminal the bar shows the rest.
        if epochs and ("verdict" in line or not err.is_terminal):
            self.say(epoch_text(line, epochs))

    def close(self) -> None:
        """Nothing more will come."""
        if self.events is not None:
            self.events.close()

    @contextmanager
    def bar(self, total: int, done: int) -> Iterator[Callable[[int, str], None]]:
        """A bar over all steps; yields what to call with (steps done, text)."""
        if self.quiet or not err.is_terminal:
            yield lambda *_: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"))
        with Progress(*columns, TimeRemainingColumn(), console=err) as progress:
            task = progress.add_task("starting", total=total, completed=done)
            yield lambda position, text: progress.update(task, completed=position, description=text)


class TensorBoardWriter:
    """Event files for TensorBoard with the figures of metrics.jsonl; opened with the first line."""

    def __init__(self, folder: Path | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise RequestError("--tensorboard needs tensorboard: pip install tensorboard") from None
        self.folder = folder
        self._open = SummaryWriter
        self._writer: Any = None

    def write(self, line: Line) -> None:
        """One line; a resumed run replaces the steps that it repeats."""
        step = int(line.get("step", 0))
        if self._writer is None:
            self._writer = self._open(str(self.folder), purge_step=step)
        for name, value in line.items():
            if isinstance(value, (int, float)) and name != "step":
                self._writer.add_scalar(name, value, step)
        if "verdict" in line:
            self._writer.add_text("verdict", f"{line['verdict']}: {line['why']}", step)
        self._writer.flush()

    def close(self) -> None:
        """Nothing more will come."""
        if self._writer is not None:
            self._writer.close()


def epoch_text(line: Line, epochs: int) -> str:
    """The line of a finished epoch."""
    left = line["seconds"] / line["epoch"] * (epochs - line["epoch"])
    text = step_text(line["epoch"], epochs, line["loss"], line["lr"], line["images"] / line["seconds"])
    text += f"  {format_duration(left)} left"
    for name, value in line.items():
        if name.startswith("accuracy/"):
            text += f"  {name.removeprefix('accuracy/')} {100 * value:.0f} %"
    if "verdict" in line:
        text += f"  | {line['verdict']}: {line['why']}"
    return text


def step_text(epoch: int, epochs: int, loss: float, lr: float, rate: float) -> str:
    """The figures that a bar and a line have in common."""
    return f"epoch {epoch}/{epochs}  loss {loss:.4f}  lr {lr:.4f}  {rate:.0f} images/s"


def format_duration(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes.

    >>> format_duration(75), format_duration(7500)
    ('1:15', '2:05 h')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"
