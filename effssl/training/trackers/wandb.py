"""Weights & Biases: online after `wandb login`, else offline in the folder `wandb` of the run, for `wandb sync`."""

from __future__ import annotations

import shlex
from typing import Any

from effssl.runtime.progress import say
from effssl.training.trackers.tracker import Ending, Line, TrackedRun, figures

PROJECT = "effssl"  # WANDB_PROJECT names another one


class WandbTracker:
    """One W&B run for all attempts of a run: a resumed run has the id of the first attempt."""

    def __init__(self) -> None:
        import wandb

        self._wandb: Any = wandb
        self._run: Any = None

    def open(self, run: TrackedRun) -> dict[str, str]:
        """Start a W&B run, or continue the one of that id."""
        settings = self._wandb.Settings(silent=True, console="off")  # the screen is ours
        wanted = self._wandb.setup(settings).settings
        mode = wanted.mode  # as WANDB_MODE has it
        if mode == "online" and not self._wandb.login(prompt=False, verify=False):
            mode = "offline"  # nobody is asked for an account: what is written can be uploaded later
        self._run = self._wandb.init(
            project=wanted.project or PROJECT,
            name=run.name,
            id=run.known.get("id"),  # without one, WANDB_RUN_ID or a new one
            resume="allow",
            dir=str(run.folder),
            config=dict(run.config),
            allow_val_change=True,  # of a run that is trained longer
            mode=mode,
            settings=settings,
        )
        self._run.define_metric("*", step_metric="step")  # W&B's own step would refuse the steps of a second attempt
        upload = f"offline; to upload it: wandb sync {shlex.quote(str(run.folder))}/wandb/offline-run-*"
        say(f"wandb: {upload if mode == 'offline' else self._run.url or mode}")
        return {"id": self._run.id}

    def write(self, line: Line) -> None:
        """Log the figures of a line; its verdict is in the summary."""
        self._run.log(figures(line))
        if "verdict" in line:
            self._run.summary["verdict"] = f"{line['verdict']}: {line['why']}"

    def close(self, ending: Ending) -> None:
        """Finish; a run that is not finished counts as failed until it is resumed."""
        if self._run is not None:
            self._run.finish(exit_code=0 if ending == "finished" else 1)
