"""Where else the lines of a run go, besides metrics.jsonl: `--log csv,tensorboard,wandb,mlflow`. A file for each."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence

from effssl.runtime.errors import RequestError, did_you_mean
from effssl.training.trackers.tracker import Tracker

# Name: module and class, the package that is imported, and how it is installed.
TRACKERS = {
    "csv": ("csv_file:CsvTracker", "", ""),
    "tensorboard": ("tensorboard:TensorBoardTracker", "tensorboard", "pip install 'effssl[tensorboard]'"),
    "wandb": ("wandb:WandbTracker", "wandb", "pip install 'effssl[wandb]'"),
    "mlflow": ("mlflow:MlflowTracker", "mlflow", "pip install 'effssl[mlflow]'"),
}
NONE = "none"


def tracker_names(text: str | Sequence[str]) -> tuple[str, ...]:
    """The trackers that `--log` names, each once.

    >>> tracker_names("csv, wandb,csv")
    ('csv', 'wandb')
    """
    words = [word.strip() for word in (text.split(",") if isinstance(text, str) else text)]
    names = tuple(dict.fromkeys(word for word in words if word and word != NONE))
    for name in names:
        if name not in TRACKERS:
            near = did_you_mean(name, TRACKERS)
            raise RequestError(f"--log: no tracker is called {name!r}{near}; choose among {', '.join(TRACKERS)}")
    return names


def check_installed(names: Sequence[str]) -> None:
    """Report a package that is missing."""
    for name in names:
        _, package, install = TRACKERS[name]
        if package and importlib.util.find_spec(package) is None:
            raise RequestError(f"--log {name} needs {package}: {install}")


def create_tracker(name: str) -> Tracker:
    """A tracker that no run is open in."""
    module, _, kind = TRACKERS[name][0].partition(":")
    tracker: Tracker = getattr(importlib.import_module(f"{__name__}.{module}"), kind)()
    return tracker
