"""A run in another terminal: its files as text, updated until it ends. Nothing here imports torch."""

from __future__ import annotations

import math
import os
import platform
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from effssl.report.standing import sign
from effssl.report.summary import curves, duration
from effssl.run import RunFolder
from effssl.runtime.reading import read_start

BARS = "▁▂▃▄▅▆▇█"
EVERY = 2.0  # seconds between two updates
SILENT = 300  # seconds without output after which a run has probably ended
COLORS = {"✓": "green", "✗": "red"}
WRITTEN = ("metrics.jsonl", "checkpoint.pt", "config.yaml", "lock")


def sparkline(values: Sequence[float | None], width: int = 40) -> str:
    """A curve in one line of text, scaled from its lowest to its highest value; long ones are subsampled.

    >>> sparkline([0, 1, 2, 3])
    '▁▃▆█'
    >>> sparkline([5, 5, None, 5])
    '▄▄▄'
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    if len(known) > width:
        known = [known[round(k * (len(known) - 1) / (width - 1))] for k in range(width)]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    if not span:
        return BARS[3] * len(known)
    return "".join(BARS[min(7, int((value - low) / span * 7 + 0.5))] for value in known)


def time_left(lines: list[dict[str, Any]], epochs: int, since: float) -> float | None:
    """Seconds left: the remaining epochs at the mean speed so far, minus the time since the last line."""
    done = lines[-1].get("epoch", 0) if lines else 0
    if not done or done >= epochs:
        return None
    return max(0.0, lines[-1].get("seconds", 0.0) / done * (epochs - done) - since)


def last_write(folder: Path) -> float:
    """Seconds since the run last wrote a file."""
    times = [(folder / name).stat().st_mtime for name in WRITTEN if (folder / name).exists()]
    return max(0.0, time.time() - max(times, default=0.0))


def has_ended(folder: Path) -> bool:
    """Whether the training process is known to have ended: it ran on this machine and is not there any more."""
    holder = read_start(folder / "lock", 1000).decode("utf-8", "replace")
    found = re.match(r"process (\d{1,9}) on (.*), started by", holder)
    if not found or found[2] != platform.node():
        return False
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # of another user
        pass
    return False


def panel(run: RunFolder, width: int = 80) -> Panel:
    """The state of a run: configuration, verdict, progress and curves."""
    lines, config, finished = run.metrics(), run.config, run.finished
    done = lines[-1].get("epoch", 0) if lines else 0
    epochs = done if finished else config.epochs  # a time budget may end a run before or after the planned epoch
    head = Text(f"{config.objective} on {config.data}, {config.encoder} encoder")
    bar = Padding(ProgressBar(total=max(1, epochs), completed=done, width=min(60, width - 6)), 0)  # ends the line
    return Panel(
        Group(head, verdict(lines), Text(progress(run, lines, epochs)), bar, figures(lines, width - 4)),
        title=str(run.folder), title_align="left", width=width,
    )  # fmt: skip


def verdict(lines: list[dict[str, Any]]) -> Text:
    """The last verdict on the representation, and why."""
    judged = next((line for line in reversed(lines) if "verdict" in line), None)
    if judged is None:
        return Text("… no verdict yet")
    icon = sign(judged["verdict"])
    color = COLORS.get(icon, "yellow")
    return Text.assemble((f"{icon} {judged['verdict']}", f"bold {color}"), f"  {judged['why']}")


def progress(run: RunFolder, lines: list[dict[str, Any]], epochs: int) -> str:
    """Epochs done, and whether the run is finished, stopped, silent, or how long it still takes."""
    config, finished, silent = run.config, run.finished, last_write(run.folder)
    done = lines[-1].get("epoch", 0) if lines else 0
    # A time budget decides at its end how many epochs there are.
    state = f"epoch {done} within {config.budget}" if config.budget else f"epoch {done} of {epochs}"
    if finished:
        return f"{state}, finished"
    if has_ended(run.folder) and not run.finished:  # it may have finished meanwhile
        return f"stopped after {state}; resume it with --resume auto"
    if silent > SILENT:
        return f"{state}, no output for {duration(silent)}: it was stopped, or an epoch takes long"
    left = time_left(lines, epochs, silent)
    return state if left is None else f"{state}, about {duration(left)} left"


def figures(lines: list[dict[str, Any]], width: int) -> Table:
    """Every curve as a line of text with its first and last value, at most `width` wide."""
    grid = Table(box=None, show_header=True, header_style="dim", pad_edge=False)
    for name, side in (("", "left"), ("first", "right"), ("", "left"), ("last", "right")):
        grid.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
    found, rows = curves(lines), []
    for chart in found["charts"]:
        for key in chart["keys"]:
            known = [value for value in found["columns"][key] if value is not None]
            alone = len(chart["keys"]) == 1 and "/" not in key
            name = chart["title"] if alone else f"{chart['title']}, {found['names'][key]}"
            if key in chart["chance"]:
                name += f" (chance {chart['chance'][key]:.2g})"
            rows.append((name, f"{known[0]:.4g}", known, f"{known[-1]:.4g}"))
    words = sum(max([len("first"), *(len(row[i]) for row in rows)]) for i in (0, 1, 3))
    for name, first, known, last in rows:
        grid.add_row(Text(name), first, sparkline(known, max(5, min(60, width - words - 6))), last)
    return grid


def watch(folder: str | Path, once: bool = False, every: float = EVERY) -> None:
    """Show a run and update it until it is finished or the user presses Ctrl-C."""
    run, console = RunFolder(folder), Console(highlight=False)
    if once or not console.is_terminal:
        console.print(panel(run, min(console.width, 100)))
        return
    try:
        with Live(panel(run, console.width), console=console, auto_refresh=False) as live:
            finished = False
            while not finished:
                finished = run.finished  # read before the update, so that the last one shows the end
                live.update(panel(run, console.width), refresh=True)
                if not finished:
                    time.sleep(every)
    except KeyboardInterrupt:
        console.print("stopped watching; the run continues")
