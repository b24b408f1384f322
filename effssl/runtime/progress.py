"""Bars, spinners and tables: live on a terminal, plain lines elsewhere. Everything goes to stderr but results."""

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


class _Persistent(Console):
    """A console whose reader may go away (`| head`, a closed terminal): work goes on, unseen."""

    def on_broken_pipe(self) -> None:
        """What rich calls; its own version ends the program."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


err = _Persistent(stderr=True, highlight=False, soft_wrap=True)


def say(line: str) -> None:
    """One plain line for the user."""
    err.print(line, markup=False)


@contextmanager
def silenced(quiet: bool = True) -> Iterator[None]:
    """Within, nothing is shown on stderr, if so wished."""
    before, err.quiet = err.quiet, err.quiet or quiet
    try:
        yield
    finally:
        err.quiet = before


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """Something that takes a while and cannot tell how long."""
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
    """A bar that counts bytes; yields the function to call with each piece's length."""
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
def counter(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar that counts items; without a terminal a line every ten seconds."""
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
    done, said = 0, time.monotonic()

    def advance(amount: int) -> None:
        nonlocal done, said
        done += amount
        if time.monotonic() - said > 10:
            said = time.monotonic()
            say(f"{text} {done}/{total}")

    yield advance


def screen_width() -> int:
    """Characters in a line of stdout."""
    return shutil.get_terminal_size((120, 24)).columns


def table(title: str, header: Iterable[str], rows: Iterable[Iterable[str]], left: Collection[str] = ()) -> None:
    """Print a result table on stdout; its first column and those named `left` are words, the others numbers."""
    grid = Table(title=title, title_justify="left", title_style="bold")
    for i, name in enumerate(header):
        # Folded, because half of a path is of no use.
        grid.add_column(name, justify="left" if i == 0 or name in left else "right", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    Console(width=screen_width(), highlight=False).print(grid)
