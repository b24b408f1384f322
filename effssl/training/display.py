"""What a user sees of a run: a live bar on a terminal, one plain line per epoch elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from effssl.runtime.progress import err, say


class Display:
    """Progress of one run; `quiet` shows nothing but problems."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    def say(self, line: str) -> None:
        """One line for the user."""
        if not self.quiet:
            say(line)

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

    def epoch(self, line: dict[str, Any], epochs: int) -> None:
        """The line of a finished epoch; on a terminal, where the bar shows the rest, only those with a verdict."""
        if err.is_terminal and "verdict" not in line:
            return
        left = line["seconds"] / line["epoch"] * (epochs - line["epoch"])
        text = progress_text(line["epoch"], epochs, line["loss"], line["lr"], line["images"] / line["seconds"])
        text += f"  {clock(left)} left"
        if "rotation_accuracy" in line:
            text += f"  rotation {100 * line['rotation_accuracy']:.0f} %"
        if "verdict" in line:
            text += f"  | {line['verdict']}: {line['why']}"
        self.say(text)


def progress_text(epoch: int, epochs: int, loss: float, lr: float, rate: float) -> str:
    """The figures that a bar and a line have in common."""
    return f"epoch {epoch}/{epochs}  loss {loss:.4f}  lr {lr:.4f}  {rate:.0f} images/s"


def clock(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes.

    >>> clock(75), clock(7500)
    ('1:15', '2:05 h')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"
