"""The trackers of a run: each gets each line once, over all attempts at the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from effssl.run import RunFolder
from effssl.runtime.errors import RequestError
from effssl.runtime.files import write_atomically
from effssl.runtime.progress import say
from effssl.runtime.reading import describe, read_json
from effssl.schema import flatten, to_dict
from effssl.training.trackers import create_tracker
from effssl.training.trackers.tracker import Ending, Line, TrackedRun, Tracker

FILE = "trackers.json"


@dataclass
class Record:
    """What a run folder keeps of a tracker: what identifies the run there, and the last epoch that it got."""

    known: dict[str, str] = field(default_factory=dict)
    epoch: int = -1


def read_records(folder: Path) -> dict[str, Record]:
    """The trackers that a run was started with, by name."""
    path = folder / FILE
    try:
        found = read_json(path) if path.is_file() else {}
        return {name: Record(dict(record["known"]), int(record["epoch"])) for name, record in found.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        reason = f"{path} cannot be read ({describe(error)})"
        raise RequestError(f"{reason}; delete it, and trackers that keep runs themselves will get a new one") from None


class Tracking:
    """The trackers of one attempt. What a tracker cannot take now, because a server is away, it gets later."""

    def __init__(self, names: Sequence[str]) -> None:
        self.trackers: dict[str, Tracker] = {name: create_tracker(name) for name in names}
        self.waiting: dict[str, list[Line]] = {name: [] for name in names}  # lines that a tracker has not taken
        self.records: dict[str, Record] = {}
        self.folder = Path()

    def open(self, run: RunFolder) -> None:
        """Open the run in all trackers, and give them the lines that they have not got."""
        self.folder, self.records = run.folder, read_records(run.folder)
        config: dict[str, Any] = flatten(to_dict(run.config))
        for name, tracker in self.trackers.items():
            record = self.records.setdefault(name, Record())
            try:
                record.known = tracker.open(TrackedRun(run.folder, config, record.known))
            except Exception as error:  # whatever a tracker's own package or its server raises
                raise RequestError(
                    f"--log {name}: {describe(error)}; then resume with --resume auto, or use --log none"
                ) from None
            self._save()
        for line in run.metrics():
            self.write(line)

    def write(self, line: Line) -> None:
        """Give a line to all trackers that have not got it."""
        for name in self.trackers:
            waiting = self.waiting[name]
            if line["epoch"] > max([self.records[name].epoch, *(one["epoch"] for one in waiting)]):
                waiting.append(line)
                self._give(name, first=len(waiting) == 1)
        self._save()

    def _give(self, name: str, first: bool) -> None:
        """Give a tracker all that waits for it; what it does not take is reported with the first line."""
        waiting = self.waiting[name]
        while waiting:
            try:
                self.trackers[name].write(waiting[0])
            except Exception as error:  # as above; hours of training are not thrown away for it
                if first:
                    say(f"{name} has not taken epoch {waiting[0]['epoch']} and will get it later: {describe(error)}")
                return
            self.records[name].epoch = waiting.pop(0)["epoch"]

    def _save(self) -> None:
        records = {name: asdict(record) for name, record in self.records.items()}
        write_atomically(self.folder / FILE, json.dumps(records, indent=1) + "\n")

    def close(self, ending: Ending) -> None:
        """Give what still waits, and close all trackers."""
        for name, tracker in self.trackers.items():
            self._give(name, first=False)
            if self.waiting[name]:
                epochs = f"{len(self.waiting[name])} lines from epoch {self.waiting[name][0]['epoch']} on"
                say(f"{name} lacks {epochs}; they are in {self.folder / 'metrics.jsonl'}")
            try:
                tracker.close(ending)
            except Exception as error:  # as above
                say(f"{name} could not be closed: {describe(error)}")
        if self.records:
            self._save()
