"""The journal of a run: one line per epoch in metrics.jsonl, in trackers and on the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from effssl.run import RunFolder
from effssl.runtime.errors import Stopped, in_words_of_caller
from effssl.runtime.notebook import in_notebook, notebook_bar
from effssl.runtime.progress import err, say, silenced
from effssl.training.trackers import check_installed
from effssl.training.tracking import Tracking

Line = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where in a run an epoch is: of so many, or of a time budget, whose number of epochs is open until its end."""

    epoch: int
    epochs: int
    left: float  # seconds
    budget: str = ""
    share: float = 0.0  # of the budget that is gone

    def __str__(self) -> str:
        if self.budget:
            return f"epoch {self.epoch}, {100 * min(1.0, self.share):.0f} % of {self.budget}"
        return f"epoch {self.epoch}/{self.epochs}"


class Journal:
    """Whoever wants to know how a run is doing reads it here. Only one of many processes `writes`.

    A context manager: at its end, trackers are told how the run ended.
    """

    def __init__(self, quiet: bool = False, writes: bool = True) -> None:
        self.quiet = quiet or not writes
        self.writes = writes
        self.run: RunFolder | None = None
        self.tracking: Tracking | None = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.tracking is None or self.run is None:
            return
        stopped = kind is not None and issubclass(kind, (Stopped, KeyboardInterrupt))
        self.tracking.close("finished" if kind is None else "stopped" if stopped else "failed")

    def track(self, names: Sequence[str]) -> None:
        """Give the lines to these trackers, too; a package that is missing is reported now, by every process."""
        check_installed(names)
        if names and self.writes:
            self.tracking = Tracking(names)

    def open(self, run: RunFolder) -> None:
        """Write to the files of this run from now on."""
        if self.tracking is not None:
            with silenced(self.quiet):
                self.tracking.open(run)
        self.run = run

    def say(self, text: str) -> None:
        """One line for the user."""
        if not self.quiet:
            say(in_words_of_caller(text))

    def write(self, line: Line, place: Place | None = None) -> None:
        """Record a line; that of an epoch, which has a place in the run, is shown too."""
        if self.writes and self.run is not None:
            self.run.log(line)
            if self.tracking is not None:
                self.tracking.write(line)
        # On a terminal the bar shows the rest.
        if place and ("verdict" in line or not err.is_terminal):
            self.say(epoch_text(line, place))

    @contextmanager
    def bar(self, total: int, done: int) -> Iterator[Callable[[int, str], None]]:
        """A bar over all steps; yields what to call with (steps done, text)."""
        if in_notebook() and not self.quiet:
            with notebook_bar("starting", total, done) as shown:
                yield shown.update
            return
        if self.quiet or not err.is_terminal:
            yield lambda *_: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"))
        with Progress(*columns, TimeRemainingColumn(), console=err) as progress:
            task = progress.add_task("starting", total=total, completed=done)
            yield lambda position, text: progress.update(task, completed=position, description=text)


def epoch_text(line: Line, place: Place) -> str:
    """The line of a finished epoch."""
    text = step_text(place, line["loss"], line["lr"], line["images"] / line["seconds"])
    text += f"  {format_duration(place.left)} left"
    for name, value in line.items():
        if name.startswith("accuracy/"):
            task = name.removeprefix("accuracy/")
            text += f"  {task} {100 * value:.0f} % (chance {100 * line[f'chance/{task}']:.0f} %)"
    if "verdict" in line:
        text += f"  | {line['verdict']}: {line['why']}"
    return text


def step_text(place: Place, loss: float, lr: float, rate: float) -> str:
    """The figures that a bar and a line have in common."""
    return f"{place}  loss {loss:.4f}  lr {lr:.4f}  {rate:.0f} images/s"


def format_duration(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes.

    >>> format_duration(75), format_duration(7500)
    ('1:15', '2:05 h')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"
