"""MLflow: the store that MLFLOW_TRACKING_URI names, or MLflow's own default below the working folder."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from effssl.runtime.progress import say
from effssl.training.trackers.tracker import Ending, Line, TrackedRun, figures

EXPERIMENT = "effssl"  # MLFLOW_EXPERIMENT_NAME names another one
LONGEST = 500  # characters of a parameter: the oldest servers take no more
BATCH = 100  # parameters that a server takes at once
STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
LOCAL = ("sqlite:", "file:", "/")


class MlflowTracker:
    """One MLflow run for all attempts of a run."""

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # a lost server does not hold the training up
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        import mlflow

        self._mlflow: Any = mlflow
        self._client: Any = None
        self._id = ""

    def open(self, run: TrackedRun) -> dict[str, str]:
        """Create an MLflow run, or continue the one of that id, where it is."""
        from mlflow.entities import Param

        uri = run.known.get("uri", "") if "MLFLOW_TRACKING_URI" not in os.environ else ""
        uri = uri or self._mlflow.get_tracking_uri()
        self._client = self._mlflow.MlflowClient(uri)
        if "id" in run.known:
            self._client.update_run(run.known["id"], status="RUNNING")
            self._id = run.known["id"]
        else:
            self._id = self._client.create_run(self._experiment(), run_name=run.name).info.run_id
            params = [Param(name, str(value)[:LONGEST]) for name, value in run.config.items()]
            for first in range(0, len(params), BATCH):
                self._client.log_batch(self._id, params=params[first : first + BATCH])
        say(f"mlflow: run {self._id} in {without_password(uri)}")
        # An address may hold a password, and a run folder is shown to others.
        return {"id": self._id} | ({"uri": uri} if uri.startswith(LOCAL) else {})

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        found = self._client.get_experiment_by_name(name)
        return found.experiment_id if found is not None else self._client.create_experiment(name)

    def write(self, line: Line) -> None:
        """Log the figures of a line; its verdict is a tag."""
        from mlflow.entities import Metric

        # MLflow's file store has a file for each metric: beside `loss` there can be no folder of that name.
        values = {name.replace("/", "."): value for name, value in figures(line).items()}
        now = int(1000 * time.time())
        step = int(values.pop("step"))
        self._client.log_batch(self._id, [Metric(name, float(value), now, step) for name, value in values.items()])
        if "verdict" in line:
            self._client.set_tag(self._id, "verdict", f"{line['verdict']}: {line['why']}")

    def close(self, ending: Ending) -> None:
        """Say how the run ended."""
        if self._id:
            self._client.set_terminated(self._id, STATUS[ending])


def without_password(uri: str) -> str:
    """An address that may be shown.

    >>> without_password("https://me:secret@host/path")
    'https://host/path'
    """
    scheme, separator, rest = uri.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2] if separator else rest}"
