"""Progress bars, spinners and tables: live on a terminal, plain lines elsewhere. Only results go to stdout."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from effssl.runtime.notebook import in_notebook, notebook_bar

LINE_INTERVAL = 10.0  # seconds between lines where there is no terminal


class _PersistentConsole(Console):
    """A console whose reader may disappear (`| head`, a closed terminal) without ending the program."""

    def on_broken_pipe(self) -> None:
        """Discard further output; rich's own version ends the program."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


# Not rich's own Jupyter output, which needs a package for a bar that moves and shows each line as a block.
err = _PersistentConsole(stderr=True, highlight=False, soft_wrap=True, force_jupyter=False)


def say(line: str) -> None:
    """Print one plain line to stderr; in a notebook to stdout, because notebooks show stderr in red."""
    if in_notebook():
        if not err.quiet:
            print(line, flush=True)
        return
    err.print(line, markup=False)


@contextmanager
def silenced(quiet: bool = True) -> Iterator[None]:
    """Print nothing to stderr during the block, if `quiet`."""
    previous, err.quiet = err.quiet, err.quiet or quiet
    try:
        yield
    finally:
        err.quiet = previous


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """Show that something of unknown duration is running."""
    if not err.is_terminal:
        say(f"{text} …")
        yield
        return
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=err, transient=True
    ) as bar:
        bar.add_task(text)
        yield


@contextmanager
def download_bar(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar in bytes; yields a function that takes the number of new bytes."""
    if not err.is_terminal:
        say(f"{text} ({total / 1e6:.0f} MB) …" if total else f"{text} …")
        yield lambda amount: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(text, total=total or None)
        yield lambda amount: bar.advance(task, amount)


@contextmanager
def progress_bar(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar in items; yields a function that takes the number of new items."""
    if in_notebook() and not err.quiet:
        with notebook_bar(text, total, transient=True) as shown:
            yield lambda amount: shown.update(shown.done + amount)
        return
    if err.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=err, transient=True) as bar:
            task = bar.add_task(text, total=total)
            yield lambda amount: bar.advance(task, amount)
        return
    done = 0
    last_line = time.monotonic()

    def advance(amount: int) -> None:
        nonlocal done, last_line
        done += amount
        if time.monotonic() - last_line > LINE_INTERVAL:
            last_line = time.monotonic()
            say(f"{text} {done}/{total}")

    yield advance


def screen_width() -> int:
    """Number of columns of the terminal, or 120."""
    return shutil.get_terminal_size((120, 24)).columns


def table(title: str, header: Iterable[str], rows: Iterable[Iterable[str]], left: Collection[str] = ()) -> None:
    """Print a table to stdout; its first column and those in `left` are aligned left, the others right."""
    grid = Table(title=title, title_justify="left", title_style="bold")
    for i, name in enumerate(header):
        # Long cells are wrapped rather than truncated: half of a path is useless.
        grid.add_column(name, justify="left" if i == 0 or name in left else "right", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    Console(width=screen_width(), highlight=False).print(grid)
