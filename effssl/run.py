"""A run is a folder: its files, and nothing else.

config.yaml          the complete configuration, with versions
metrics.jsonl        one line per epoch, with the health of the representation where it was evaluated
checkpoint.pt        the state to resume from (checkpoint.previous.pt: the one before)
encoder.safetensors  the trained encoder with its preprocessing
results.json         scores, each with its protocol
report.html          the run as one page
images.npz           of a folder of images, those that the run is trained on (unreadable.txt: those it is not);
                     of several sets images-0.npz …
trackers.json        the trackers that get the lines of metrics.jsonl too, and what identifies the run there
lock                 the process that trains here, or did last
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import re
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from effssl.config import Config, config_type
from effssl.runtime.errors import RequestError
from effssl.runtime.files import locked, write_atomically
from effssl.runtime.progress import say
from effssl.runtime.reading import parse_json, read_bytes, read_json, read_start
from effssl.runtime.versions import versions
from effssl.schema import build, read_yaml, to_dict, written_by

if TYPE_CHECKING:
    from typing_extensions import Self

RUN_FILES = (
    "config.yaml", "metrics.jsonl", "checkpoint.pt", "checkpoint.previous.pt", "encoder.safetensors", "results.json",
    "report.html", "images.npz", "unreadable.txt", "lock", "results.lock",
    "metrics.csv", "trackers.json", "tensorboard", "wandb",
)  # fmt: skip
"""Names of files in a run folder."""
LISTS = re.compile(r"images-\d+\.npz")  # of the folders among several sets
RESULTS_WAIT = 60.0  # seconds to wait for another process that writes results.json


def is_run_file(name: str) -> bool:
    """Whether a file in a run folder is called so."""
    return name in RUN_FILES or LISTS.fullmatch(name) is not None


class RunFolder:
    """A pretraining run on disk: where its files are, what they hold, and the locks on them."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._skipped: set[int] = set()  # lines of metrics.jsonl that were reported
        if not self.folder.is_dir():
            raise RequestError(f"no run folder at {self.folder}")
        if not self.config_path.is_file():
            raise RequestError(f"{self.folder} is not a run folder (it has no config.yaml)")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    @classmethod
    def create(cls, folder: str | Path, config: Config) -> Self:
        """Create a run folder that holds its configuration; one that holds a run already is refused."""
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / "config.yaml", cls._config_text(config), new=True)
        except FileExistsError:
            raise RequestError(
                f"the run {folder} exists: another process has just started it; wait for it, or choose another --out"
            ) from None
        except OSError as error:
            raise RequestError(f"the run folder {folder} cannot be created: {error.strerror}") from None
        return cls(folder)

    def reopen(self, config: Config) -> None:
        """Make a finished run one that is to be trained longer; scores so far keep the number of epochs they are of."""
        done = f" epochs={self.config.epochs}"
        with self.results_locked():
            stored = self._stored_results()
            results = {name if " epochs=" in name else name + done: score for name, score in stored.items()}
            if results:
                write_atomically(self.results_path, json.dumps(results, indent=2) + "\n")
        # In this order: without its encoder file, a run is resumed from its checkpoint whatever happens.
        self.encoder_path.unlink(missing_ok=True)
        write_atomically(self.config_path, self._config_text(config))

    @staticmethod
    def _config_text(config: Config) -> str:
        return yaml.safe_dump(to_dict(config) | {"versions": versions()}, sort_keys=False)

    config_path = property(lambda self: self.folder / "config.yaml")
    metrics_path = property(lambda self: self.folder / "metrics.jsonl")
    checkpoint_path = property(lambda self: self.folder / "checkpoint.pt")
    encoder_path = property(lambda self: self.folder / "encoder.safetensors")
    results_path = property(lambda self: self.folder / "results.json")
    report_path = property(lambda self: self.folder / "report.html")

    @property
    def config(self) -> Config:
        """The complete configuration."""
        values = read_yaml(self.config_path)
        source = f"{self.config_path}{written_by(values)}"
        kind = config_type()
        words = re.findall(r"\w+", str(values.get("objective")))
        known = {item.name for item in dataclasses.fields(kind)}
        # A user's term that is not registered now: its options are not needed to use the encoder.
        values = {key: value for key, value in values.items() if key in known or key not in words}
        return build(kind, values, source)

    @property
    def versions(self) -> dict[str, Any]:
        """Versions of what wrote the configuration, by name; none if it does not say."""
        found = read_yaml(self.config_path).get("versions")
        return {str(name): str(number) for name, number in found.items()} if isinstance(found, dict) else {}

    @property
    def finished(self) -> bool:
        """Whether training reached its end."""
        return self.encoder_path.is_file()

    # -----------------------------------------------------------------------------------------------------------
    # metrics.jsonl, written by the one process that holds the lock

    def locked(self) -> AbstractContextManager[None]:
        """Hold the run's lock: two processes that train into one folder would destroy each other's work."""
        return locked(self.folder / "lock", f"the run {self.folder} is being trained", "choose another --out")

    def begun_by_this_job(self) -> bool:
        """Whether the process that started this one, torchrun, also started the one that trained here before."""
        holder = f"on {platform.node()}, started by {os.getppid()}"
        return read_start(self.folder / "lock", 1000).strip().endswith(holder.encode())

    def metrics(self) -> list[dict[str, Any]]:
        """All logged lines, in order; a damaged one is left out, saying so."""
        if not self.metrics_path.exists():
            return []
        lines = read_bytes(self.metrics_path).splitlines(keepends=True)
        found = []
        # A run that was killed while writing may leave half a line at the end.
        for number, line in enumerate((line for line in lines if line.endswith(b"\n")), start=1):
            record = metrics_line(line)
            if record is not None:
                found.append(record)
            elif number not in self._skipped:
                self._skipped.add(number)
                say(f"line {number} of {self.metrics_path} is damaged and left out")
        return found

    def log(self, record: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        with self.metrics_path.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())  # a checkpoint that follows must not be safer than the lines before it

    def keep_metrics_until(self, epoch: int) -> None:
        """Drop lines of epochs that a resumed run will train again."""
        if not self.metrics_path.exists():
            return
        kept = [line for line in self.metrics() if line["epoch"] <= epoch]
        write_atomically(self.metrics_path, "".join(json.dumps(line) + "\n" for line in kept))

    # -----------------------------------------------------------------------------------------------------------
    # results.json, written by any process that evaluates

    def results(self) -> dict[str, Any]:
        """All scores so far, by the name of their evaluation; entries that are no scores are left out."""
        return {name: score for name, score in self._stored_results().items() if is_score(score)}

    def add_result(self, name: str, record: dict[str, Any]) -> None:
        """Add a score to results.json, in place of one of the same name; concurrent processes lose nothing."""
        with self.results_locked():
            results = self._stored_results() | {name: record}
            write_atomically(self.results_path, json.dumps(results, indent=2) + "\n")

    def results_locked(self) -> AbstractContextManager[None]:
        """Hold the lock of results.json; another process waits for it up to RESULTS_WAIT seconds."""
        busy = f"scores of {self.folder} are being written"
        return locked(self.folder / "results.lock", busy, "evaluate again later", RESULTS_WAIT)

    def check_results(self) -> None:
        """Refuse a results.json that no score can be added to."""
        with self.results_locked():
            self._stored_results()

    def _stored_results(self) -> dict[str, Any]:
        try:
            found = read_json(self.results_path) if self.results_path.exists() else {}
        except (OSError, ValueError) as error:
            raise RequestError(f"{self.results_path} cannot be read: {error}") from None
        if not isinstance(found, dict):
            raise RequestError(f"{self.results_path} does not hold scores by name")
        return found


COUNTED = ("epoch", "step", "images", "seconds", "flops")


def metrics_line(text: bytes) -> dict[str, Any] | None:
    """The values of a line of metrics.jsonl; None if it is none: values are numbers, texts or null."""
    try:
        found = parse_json(text)
    except ValueError:
        return None
    if not isinstance(found, dict) or type(found.get("epoch")) is not int or ("verdict" in found) != ("why" in found):
        return None
    return found if all(_fits(key, value) for key, value in found.items()) else None


def _fits(key: str, value: Any) -> bool:
    if key in ("verdict", "why"):
        return isinstance(value, str)
    if key in COUNTED:
        return type(value) in (int, float) and 0 <= value <= sys.float_info.max
    return value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) <= sys.float_info.max)


def is_score(found: Any) -> bool:
    """Whether a value read from JSON is a score, as `Score.record` gives it."""
    kinds: dict[str, Any] = {"value": (int, float), "protocol": str, "metric": str, "constants": dict}
    if not isinstance(found, dict) or not all(isinstance(found.get(key), kind) for key, kind in kinds.items()):
        return False
    return math.isfinite(found["value"]) and isinstance(found.get("source", {}), dict)
