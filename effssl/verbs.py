"""The verbs of a run, bound in one place: `run.knn()`, `run.encoder()`, `run.report()`; `pretrain` and `load`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from effssl.loading import load, load_run_classifier, load_run_encoder, open_run_data
from effssl.run import RunFolder
from effssl.runtime.errors import RequestError
from effssl.runtime.files import check_writable, resolve_path
from effssl.runtime.progress import say
from effssl.several import join_sets

if TYPE_CHECKING:
    from torch import nn

    from effssl.data import Data
    from effssl.evaluation.score import Score
    from effssl.explore.classify import Classification, LabelsLike
    from effssl.network.loaded import LoadedEncoder
    from effssl.training.request import Request

__all__ = ["Run", "carry_out", "load", "pretrain"]


class Run(RunFolder):
    """A pretraining run on disk.

    `run.knn()` and `run.linear()` evaluate its encoder, `run.encoder()` loads it.
    """

    def _repr_html_(self) -> str:
        """What a notebook shows of a run."""
        from effssl.report.inline import run_html

        return run_html(self)

    def data(self) -> Data:
        """The data set the run was trained on."""
        return open_run_data(self)

    def encoder(self, projector: bool = False) -> LoadedEncoder:
        """The trained encoder, frozen, with its preprocessing; on request with the projector g of its checkpoint."""
        return load_run_encoder(self, projector)

    def classifier(self) -> nn.Linear:
        """The linear classifier that a term of the objective trained on the encoder's features."""
        return load_run_classifier(self)

    def starting_weights(self) -> LoadedEncoder | None:
        """The encoder that the run started from, as in its first evaluation; None if that was random or is gone."""
        from effssl.training.start import starting_encoder

        config = self.config
        if not config.start_from:
            return None
        try:
            start = starting_encoder(config)
        except RequestError as error:
            say(f"the starting weights cannot be read and are left out: {error}")
            return None
        if start is None:
            say(f"the starting weights {config.start_from} have changed since, and are left out")
        return start

    def extend(self, epochs: int, quiet: bool = False, report: bool = True) -> Run:
        """Train the finished run longer, up to so many epochs in all, with a warm restart of its schedule."""
        return pretrain(out=self.folder, resume="auto", epochs=epochs, quiet=quiet, report=report)

    def report(self, out: str | Path | None = None, images: int = 1000) -> Path:
        """Write the run as one HTML page, by default `report.html` in its folder."""
        from effssl.report import write_report

        return write_report(self.folder, out, images=images)

    def classify(self, labels: LabelsLike, data: str | Path | None = None, **settings: Any) -> Classification:
        """Train a classifier on few labelled images of a folder, by default the run's own, and predict the others."""
        from effssl.explore.classify import classify

        return classify(self, data, labels, **settings)

    def knn(self, **settings: Any) -> Score:
        """k-nearest-neighbor accuracy of the encoder on the test images."""
        return self.evaluate("knn", **settings)

    def linear(self, **settings: Any) -> Score:
        """Accuracy of a linear layer trained on the frozen encoder."""
        return self.evaluate("linear", **settings)

    def evaluate(
        self, what: str, data: str | None = None, device: str = "auto", classes: str = "", **settings: Any
    ) -> Score:
        """Evaluate the encoder by a protocol of `effssl.evaluation` and add the score to results.json.

        `whiten="off"` evaluates h itself where features are whitened; `baselines=True` adds what costs nothing.
        """
        return self.scores(what, data, device, classes, **settings)[0]

    def scores(
        self,
        what: str,
        data: str | None = None,
        device: str = "auto",
        classes: str = "",
        whiten: str = "on",
        baselines: bool | None = False,
        **settings: Any,
    ) -> tuple[Score, dict[str, Score]]:
        """As `evaluate`, with the scores of what costs nothing and of the starting weights; None: if that is quick."""
        from effssl import evaluation
        from effssl.report import refresh
        from effssl.runtime.device import pick_device

        # Refuse what cannot work before anything slow.
        protocol = evaluation.find_protocol(what)
        options = protocol.options_of(settings)
        check_writable(self.folder)
        self.check_results()

        # A run that was trained without labels may be evaluated with those of other data.
        labels = "auto" if self.config.labels == "none" else self.config.labels
        source = evaluation.open_source(protocol, options, data, labels, classes) or self.data()
        encoder = self.encoder(projector=protocol.needs_projector)
        if whiten == "off":
            encoder = encoder.without_whitening()
        encoder = encoder.to(pick_device(device))
        changed = protocol.changed(options) + (["whiten=off"] if whiten == "off" else [])
        changed += [f"epochs={encoder.about['epochs']}"] if "checkpoint" in encoder.about else []
        score, others = evaluation.evaluate_beside(what, encoder, source, baselines, **settings)
        self.add_result(score_name(what, changed, data, classes), score.record())
        if others and (start := self.starting_weights()) is not None:
            others["starting weights"] = evaluation.evaluate(what, start.to(encoder.device), source, **settings)
        for name, found in others.items():
            self.add_result(score_name(f"{what} of {name}", changed, data, classes), found.record())
        with self.results_locked():  # of two processes, the later one refreshes the report with both scores
            refresh(self)
        return score, others


def score_name(what: str, changed: list[str], data: str | None, classes: str) -> str:
    """The name of a score in results.json: with other options or on other data it is another score, and all stay."""
    from effssl.data import NAMED

    place = "" if data is None else f"@{data if data in NAMED else resolve_path(data)}"
    chosen = [f"classes={resolve_path(classes)}"] if classes else []
    return " ".join([what + place, *changed, *chosen])


def pretrain(
    data: str | Path | Sequence[str | Path] = "",
    objective: str | None = None,
    *,
    out: str | Path | None = None,
    resume: str = "never",
    config: str | Path | None = None,
    quiet: bool = False,
    report: bool = True,
    log: str | Sequence[str] | None = None,
    **settings: Any,
) -> Run:
    """Pretrain an encoder and return its run.

    Settings are the fields of `effssl.config.Config`; those of a term come as a mapping:
    `pretrain("cifar10", "simclr+rotation", epochs=20, rotation={"weight": 0.4})`. Several data sets come as a list,
    each perhaps with a weight: `pretrain(["photos", "2*scans"])`. A finished run gets its `report.html` unless `report`
    is False; `log="csv,wandb"` also gives its lines to trackers: csv, tensorboard, wandb, mlflow.
    """
    from effssl.training.request import Request
    from effssl.training.trackers import tracker_names

    if isinstance(start := settings.get("start_from"), (Path, RunFolder)):
        settings["start_from"] = str(start.folder if isinstance(start, RunFolder) else start)
    if not isinstance(data, str):  # several sets
        data = join_sets([str(data)] if isinstance(data, Path) else map(str, data))
    flags = settings | ({"data": data} if data else {}) | ({"objective": objective} if objective else {})
    request = Request(
        flags,
        Path(out) if out else None,
        resume,
        Path(config) if config else None,
        quiet,
        report,
        None if log is None else tracker_names(log),
    )
    return carry_out(request)


def carry_out(request: Request) -> Run:
    """Train as requested and write the report of a run that was trained now, or was killed before it had one."""
    from effssl.report import report_finished_run
    from effssl.runtime.processes import is_first_process
    from effssl.training.pretraining import run_request

    if os.environ.get("EFFSSL_REPORT", "on") == "off":
        request = dataclasses.replace(request, report=False)
    folder, data = run_request(request)
    run = Run(folder.folder)
    # Other processes have ended by now, and a signal ends the report, not the finished run.
    if request.report and is_first_process() and data is not None:
        report_finished_run(run, data, request.quiet)
    return run
