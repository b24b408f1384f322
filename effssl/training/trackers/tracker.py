"""What a tracker is: it opens a run, gets the lines of its journal one by one, and is told how the run ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

Line = Mapping[str, Any]
Ending = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run."""

    folder: Path
    config: Mapping[str, Any]  # flat, names with dots
    known: Mapping[str, str]  # what the tracker returned when it opened this run before; empty the first time

    @property
    def name(self) -> str:
        """What the run is called in the tracker."""
        return self.folder.resolve().name


class Tracker(Protocol):
    """One place that the lines of a run go to. Any exception is reported as one line, and does not end the run."""

    def open(self, run: TrackedRun) -> dict[str, str]:
        """Open the run, or open it again; returns what identifies it, which the run folder keeps."""

    def write(self, line: Line) -> None:
        """Take a line of metrics.jsonl; each is given once, also if a resumed run trains its epoch again."""

    def close(self, ending: Ending) -> None:
        """Nothing more will come from this process."""


def figures(line: Line) -> dict[str, float]:
    """The numbers of a line; `step` is 0 where nothing is trained yet."""
    return {"step": 0} | {name: value for name, value in line.items() if isinstance(value, (int, float))}
