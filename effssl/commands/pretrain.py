"""effssl pretrain: train an encoder on images without labels."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from effssl.commands import STARTED
from effssl.commands.parsing import parse_settings
from effssl.runtime.processes import is_first_process

if TYPE_CHECKING:
    from effssl.verbs import Run


@dataclass(frozen=True)
class Pretrain:
    """Train an encoder on images without labels.

    The objective is a weighted sum of terms, e.g. simclr+rotation or "byol + 0.5*rotation". Settings that are not given
    come from the recipe that fits the data, the objective and the machine. Options of a term are --TERM.OPTION.
    """

    out: str = ""
    """run folder to create; default runs/<data>-<terms>-<seed>"""
    resume: Literal["never", "auto"] = "never"
    """auto resumes the run in --out, or starts it"""
    config: str = ""
    """a YAML file with settings, e.g. another run's config.yaml; flags win over it"""
    quiet: bool = False
    """show problems only"""
    report: bool = True
    """write report.html into the run folder at the end"""
    log: str = ""
    """trackers that get the figures of every epoch too: csv, tensorboard, wandb, mlflow, with commas between; a resumed
    run continues its trackers, unless this is none"""


def pretrain_(args: list[str]) -> None:
    """Parse the command line and train."""
    options, flags = parse_settings(Pretrain, args, "effssl pretrain")
    from effssl.training.request import Request
    from effssl.training.trackers import tracker_names
    from effssl.verbs import carry_out

    started = STARTED if args == sys.argv[2:] else None  # called from Python, the command begins now
    request = Request(
        flags,
        Path(options.out) if options.out else None,
        options.resume,
        Path(options.config) if options.config else None,
        options.quiet,
        options.report,
        tracker_names(options.log) if options.log else None,
        started,
    )
    run = carry_out(request)
    if not options.quiet and is_first_process():
        print("   ".join(last_line(run)))


def last_line(run: Run) -> list[str]:
    """The parts of a run's last line: its folder, its verdict beside what costs nothing, and what to do next."""
    from effssl.report.standing import standing
    from effssl.training.verdict import TO_DO, advice

    lines = run.metrics()
    judged: dict[str, str] = next((line for line in reversed(lines) if "verdict" in line), {})
    parts = [f"done: {run.folder}"]
    if judged:
        found = standing(lines, run.config.start_from)
        parts.append(f"{judged['verdict']}: {found.text if found else judged['why'].partition(TO_DO)[0]}")
    return [*parts, f"next: {advice(judged.get('why', '')) or _next_command(run)}"]


def _next_command(run: Run) -> str:
    """What to do with a finished run."""
    folder, report = shlex.quote(str(run.folder)), run.folder / "report.html"
    if (
        any("knn" in line for line in run.metrics()[-1:]) and run.config.labels != "folders"
    ):  # sub-folders alone hold no test images
        return f"effssl eval knn {folder}"
    read_report = f"open {shlex.quote(str(report))}, or " if report.is_file() else ""
    return f"{read_report}effssl outliers {folder}"
