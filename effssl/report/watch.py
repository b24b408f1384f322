"""Follow a run from another terminal: what its files tell, drawn as text. Nothing here imports torch."""

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

from effssl.report.facts import curves
from effssl.run import Run

BARS = "▁▂▃▄▅▆▇█"
EVERY = 2.0  # seconds between two looks at the files
SILENT = 300  # seconds without a sign of life after which a run is probably gone
WORDS = {"learning": ("✓", "green"), "collapsing": ("✗", "red")}
LIVING = ("metrics.jsonl", "checkpoint.pt", "config.yaml", "lock")


def sparkline(values: Sequence[float | None], width: int = 40) -> str:
    """A curve in one line of text, from its lowest value to its highest; longer ones are thinned out.

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


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(42), duration(150), duration(7300)
    ('42 s', '2 min 30 s', '2 h 01 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def time_left(lines: list[dict[str, Any]], epochs: int, since: float) -> float | None:
    """Seconds to go: the epochs that are left at the mean pace so far, less what has passed since the last line."""
    done = lines[-1].get("epoch", 0) if lines else 0
    if not done or done >= epochs:
        return None
    return max(0.0, lines[-1]["seconds"] / done * (epochs - done) - since)


def last_sign(folder: Path) -> float:
    """Seconds since the run last wrote something."""
    times = [(folder / name).stat().st_mtime for name in LIVING if (folder / name).exists()]
    return max(0.0, time.time() - max(times, default=0.0))


def is_gone(folder: Path) -> bool:
    """Whether the process that trained here is known to have ended: it was on this machine and is no more."""
    lock = folder / "lock"
    found = re.match(r"process (\d+) on (.*), started by", lock.read_text()) if lock.is_file() else None
    if not found or found[2] != platform.node():
        return False
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # somebody else's
        pass
    return False


def picture(run: Run, width: int = 80) -> Panel:
    """One look at a run."""
    lines, config, finished = run.metrics(), run.config, run.finished
    done = lines[-1].get("epoch", 0) if lines else 0
    silent, told = last_sign(run.folder), next((line for line in reversed(lines) if "verdict" in line), None)
    head = Text(f"{config.objective} on {config.data}, {config.encoder} encoder")
    if told is None:
        verdict = Text("… no verdict yet")
    else:
        icon, color = WORDS.get(told["verdict"], ("…", "yellow"))
        verdict = Text.assemble((f"{icon} {told['verdict']}", f"bold {color}"), f"  {told['why']}")
    epochs = done if finished else config.epochs  # a time budget may have ended it earlier or later than was planned
    within = f" within {config.budget}" if config.budget else ""
    state = f"epoch {done} of {'about ' if within and not finished else ''}{epochs}{within}"
    left = time_left(lines, epochs, silent)
    if finished:
        state += ", finished"
    elif is_gone(run.folder) and not run.finished:  # it may have finished just now
        state = f"stopped after {state}; go on with --resume auto"
    elif silent > SILENT:
        state += f", no sign of life for {duration(silent)}: stopped, or in a long epoch"
    elif left is not None:
        state += f", about {duration(left)} left"
    bar = ProgressBar(total=max(1, epochs), completed=done, width=min(60, width - 6))
    return Panel(
        Group(head, verdict, Text(state), Padding(bar, 0), figures(lines, width - 4)),  # a bar alone ends no line
        title=str(run.folder), title_align="left", width=width,
    )  # fmt: skip


def figures(lines: list[dict[str, Any]], width: int) -> Table:
    """Every curve as a line of text, with its first and last value, not wider than `width`."""
    grid = Table(box=None, show_header=True, header_style="dim", pad_edge=False)
    for name, side in (("", "left"), ("first", "right"), ("", "left"), ("last", "right")):
        grid.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
    found, rows = curves(lines), []
    for chart in found["charts"]:
        for key in chart["keys"]:
            known = [value for value in found["columns"][key] if value is not None]
            name = chart["title"] if len(chart["keys"]) == 1 else f"{chart['title']}, {found['names'][key]}"
            rows.append((name, f"{known[0]:.4g}", known, f"{known[-1]:.4g}"))
    words = sum(max([len("first"), *(len(row[i]) for row in rows)]) for i in (0, 1, 3))
    for name, first, known, last in rows:
        grid.add_row(Text(name), first, sparkline(known, max(5, min(60, width - words - 6))), last)
    return grid


def watch(folder: str | Path, once: bool = False, every: float = EVERY) -> None:
    """Show a run, again and again until it is finished or the user has seen enough (Ctrl-C)."""
    run, console = Run(folder), Console(highlight=False)
    if once or not console.is_terminal:
        console.print(picture(run, min(console.width, 100)))
        return
    try:
        with Live(picture(run, console.width), console=console, auto_refresh=False) as live:
            finished = False
            while not finished:
                finished = run.finished  # asked before it is drawn, so that the last picture shows the end
                live.update(picture(run, console.width), refresh=True)
                if not finished:
                    time.sleep(every)
    except KeyboardInterrupt:
        console.print("the run itself goes on")
