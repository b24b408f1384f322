"""The results of a study: a table beside the published one, claims, cost, and the figure where the paper has one."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from effssl.objectives.expression import parse
from effssl.objectives.options import TERMS
from effssl.report import write_report
from effssl.runtime.errors import RequestError
from effssl.runtime.files import write_atomically
from effssl.runtime.processor import processor_name
from effssl.runtime.progress import table
from effssl.studies.claims import compute, crossing, epochs
from effssl.studies.figure import plot, snr_curve
from effssl.studies.runner import ArmResult
from effssl.studies.scales import substitution
from effssl.studies.study import Arm, Claim, Measured, Study

VERDICTS = {True: "held", False: "not held", None: "not decided at this scale"}
FINE_PRINT = (
    "Published numbers are the paper's; ours are test scores, mean ± standard deviation over seeds, a single run where "
    "there is no deviation. TFLOP (counted) and seconds (measured) are those of training one run; "
    "seconds mean little where other programs ran on the machine."
)


@dataclass(frozen=True)
class StudyResults:
    """A study with the results of its runs."""

    study: Study
    scale: str
    results: Sequence[ArmResult]
    command: str = ""  # the command line that produced them

    @property
    def measured(self) -> Measured:
        """All values by arm and metric."""
        values: dict[tuple[str, str], list[float]] = {}
        for result in self.results:
            for name, value in result.values.items():
                values.setdefault((result.run.arm.name, name), []).append(value)
        arms = [arm for arm in self.study.arms if self.of(arm)]
        flops = {arm.name: [result.flops for result in self.of(arm) if result.flops] for arm in arms}
        return Measured(values, arms, {name: mean(counted) for name, counted in flops.items() if counted})

    def of(self, arm: Arm) -> list[ArmResult]:
        """The results of one arm."""
        return [result for result in self.results if result.run.arm.name == arm.name]


# ---------------------------------------------------------------------------------------------------------------
# The table


def header(study: Study) -> list[str]:
    """Names of the columns."""
    each = [(f"{metric}, ours", "published", "gain: ours / published / difference") for metric in study.metrics]
    return ["arm", *(name for names in each for name in names), "epochs", "seconds", "TFLOP", "seeds"]


def rows(found: StudyResults) -> list[list[str]]:
    """One row per arm: each metric beside its published value, the gain over the base method, and the cost."""
    measured = found.measured
    return [_row(found, measured, arm) for arm in measured.arms]


def _row(found: StudyResults, measured: Measured, arm: Arm) -> list[str]:
    results = found.of(arm)
    base = base_of(arm, measured.arms)
    row = [arm.name]
    for metric in found.study.metrics:
        values = measured.values.get((arm.name, metric), ())
        why = next((r.failed or r.missing.get(metric, "") for r in results if metric not in r.values), "")
        row.append(spread(values) if values else f"none ({why or 'not run'})")
        row.append(f"{arm.published[metric]:.2f}" if metric in arm.published else "")
        row.append(_gain(measured, arm, base, metric))
    trained = [result for result in results if result.seconds]
    row.append(str(results[0].run.flags["epochs"]))
    row.append(f"{mean(r.seconds for r in trained):.0f}" if trained else "")
    row.append(f"{mean(r.flops for r in trained) / 1e12:.2f}" if trained else "")
    row.append(str(len(trained)))
    return row


def _gain(measured: Measured, arm: Arm, base: Arm | None, metric: str) -> str:
    """Our gain over the base method, the published one, and their difference."""
    if base is None:
        return ""
    value, base_value = measured.mean(arm.name, metric), measured.mean(base.name, metric)
    if value is None or base_value is None:
        return ""
    ours = value - base_value
    if metric not in arm.published or metric not in base.published:
        return f"{ours:+.2f}"
    published = arm.published[metric] - base.published[metric]
    return f"{ours:+.2f} / {published:+.2f} / {ours - published:+.2f}"


def base_of(arm: Arm, arms: Sequence[Arm]) -> Arm | None:
    """The arm without pretext tasks that this one is compared with: same position on the axis, same settings."""
    terms = parse(arm.objective)
    base_terms = [term for term in terms if not TERMS[term].options.pretext]
    if not base_terms or len(base_terms) == len(terms):
        return None
    bases = [a for a in arms if a.objective == "+".join(base_terms) and a.data == arm.data and a is not arm]
    at_same_position = [a for a in bases if a.at == arm.at and a.length == arm.length]
    flags = {key: value for key, value in arm.flags.items() if key not in ("rotation", "views")}
    exact = [a for a in at_same_position if flags == dict(a.flags)]
    candidates = exact or at_same_position or [a for a in bases if a.at is None]
    return candidates[0] if candidates else None


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation."""
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def whole_table(found: StudyResults) -> tuple[list[str], list[list[str]]]:
    """Names of the columns and the rows, without empty columns."""
    head, lines = header(found.study), rows(found)
    kept = [i for i in range(len(head)) if any(line[i] for line in lines)]
    return [head[i] for i in kept], [[line[i] for i in kept] for line in lines]


# ---------------------------------------------------------------------------------------------------------------
# Claims


def verdicts(found: StudyResults) -> list[tuple[Claim, str]]:
    """Each claim, and whether it held."""
    measured = found.measured
    return [(claim, VERDICTS[claim.check(measured)]) for claim in found.study.claims]


def remarks(found: StudyResults) -> list[str]:
    """At which share of epochs and compute curves with a task reach the final value of those without."""
    study, measured = found.study, found.measured
    lines = []
    for metric in study.metrics if study.axis == "epochs" else ():
        objectives = {arm.curve: arm.objective for arm in measured.arms}
        for curve, objective in objectives.items():
            base = "+".join(term for term in parse(objective) if not TERMS[term].options.pretext)
            if base not in objectives or base == curve:
                continue
            in_epochs, in_compute = (crossing(measured, (base, curve), metric, axis) for axis in (epochs, compute))
            if in_epochs is None or in_compute is None:
                lines.append(
                    f"{curve} does not reach the final value of {base} ({metric}) within the measured lengths."
                )
            else:
                shares = f"{in_epochs:.2f} of its epochs and {in_compute:.2f} of its compute"
                lines.append(f"{curve} reaches the final value of {base} ({metric}) at {shares} (interpolated).")
    return lines


# ---------------------------------------------------------------------------------------------------------------
# Files


def markdown(found: StudyResults) -> str:
    """The table and the claims, for the documentation."""
    study = found.study
    origin = "Ours, not the paper's" if study.source == "ours" else f"{study.source} of the paper"
    head, table_rows = whole_table(found)
    lines = [
        f"# {study.name}: {study.title}",
        "",
        f"{origin}. Scale `{found.scale}`: {substitution(study, found.scale)}.",
    ]
    lines += [f"{study.note[:1].upper()}{study.note[1:]}."] if study.note else []
    lines += ["", f"    {found.command}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in table_rows]
    lines += ["", FINE_PRINT, "", "| claim | |", "|---|---|"]
    lines += [f"| {claim.text} | {verdict} |" for claim, verdict in verdicts(found)]
    lines += [line for remark in remarks(found) for line in ("", remark)]
    return "\n".join(lines).rstrip() + "\n"


def record(found: StudyResults) -> dict[str, Any]:
    """All results, as results.json contains them."""
    study = found.study
    head, table_rows = whole_table(found)
    return {
        "study": study.name,
        "title": study.title,
        "scale": found.scale,
        "substitute": substitution(study, found.scale),
        "command": found.command,
        "machine": {"processor": processor_name(), "cores": os.cpu_count(), "torch": version("torch")},
        "runs": [_run_record(study, result) for result in found.results],
        "claims": [{"claim": claim.text, "verdict": verdict} for claim, verdict in verdicts(found)],
        "remarks": remarks(found),
        "table": {"head": head, "rows": table_rows},
        "fine_print": FINE_PRINT,
    }


def _run_record(study: Study, result: ArmResult) -> dict[str, Any]:
    run = result.run
    entry: dict[str, Any] = {
        "arm": run.arm.name,
        "seed": run.seed,
        "objective": run.arm.objective,
        "at": run.arm.at,
        "curve": run.arm.curve,
        "epochs": run.flags["epochs"],
        "config": run.folder.name,
        "values": result.values,
        "missing": result.missing,
        "failed": result.failed,
        "seconds": result.seconds,
        "flops": result.flops,
        "published": dict(run.arm.published),
    }
    if "snr" in study.metrics:
        entry["snr"] = [snr for _, snr in snr_curve(result)]
    return entry


def write(found: StudyResults, folder: Path) -> Path:
    """Write results.json, README.md, report.html and the figure of a study into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown(found)
    image = plot(found.study, found.measured, found.results)
    if image:
        write_atomically(folder / "figure.png", image)
        text += "\n![the figure](figure.png)\n"
    write_atomically(folder / "README.md", text)
    write_atomically(folder / "results.json", json.dumps(record(found), indent=1) + "\n")
    write_report(folder)
    return folder


# ---------------------------------------------------------------------------------------------------------------
# On a terminal


def show(study: Study, folder: Path) -> None:
    """Print the results that a study's folder contains."""
    if not (folder / "results.json").exists():
        raise RequestError(f"{study.name} has no results in {folder}; run it with `effssl study run {study.name}`")
    print((folder / "README.md").read_text())


def print_results(found: StudyResults) -> None:
    """Print the table and the claims."""
    head, table_rows = whole_table(found)
    table(f"{found.study.name} {found.study.title}", tuple(head), [tuple(row) for row in table_rows])
    table("claims", ("claim", ""), [(claim.text, verdict) for claim, verdict in verdicts(found)])
    for line in remarks(found):
        print(line)
