"""The results of a study: a table beside the published one, claims, cost, and the figure where the paper has one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from effssl.objectives.expression import parse
from effssl.objectives.options import TERMS
from effssl.report import write_report
from effssl.runtime.errors import RequestError
from effssl.runtime.files import write_atomically
from effssl.runtime.progress import table
from effssl.runtime.reading import describe, read_text
from effssl.studies.claims import Axis, compute, crossing, crossing_interval, epochs
from effssl.studies.figure import has_figure, plot
from effssl.studies.plan import base_of
from effssl.studies.results import StudyResults, results_record
from effssl.studies.scales import replacement
from effssl.studies.statistics import Estimate, combine, decide
from effssl.studies.study import Arm, Claim, Measured, Study

CLAIMS_HEAD = ("claim", "verdict", "difference (95 %)", "p")
CLAIMS_PRINT = (
    "A claim says that one or more differences are positive. Differences are paired by seed (Welch's t where arms have "
    "different seeds), with t intervals; p is two-sided and corrected over the claims of the study (Holm). A claim is "
    "held or refuted at p < 0.05. One seed decides nothing. Intervals of shares are bootstrapped over seeds; those of "
    "three seeds are too narrow."
)
FINE_PRINT = (
    "Published numbers are the paper's; ours are test scores, mean ± standard deviation over seeds, a single run where "
    "there is no deviation. TFLOP (counted) and seconds (measured) are those of training one run; "
    "seconds mean little where other programs ran on the machine."
)


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
        values = list(measured.values.get((arm.name, metric), {}).values())
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


NO_VERDICT = "no verdict"


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict, why there is none, and the weakest of the differences that it says are positive."""

    claim: Claim
    verdict: str  # held, refuted, not decided or no verdict
    why: str = ""
    p: float | None = None  # after Holm's correction over the claims of the study
    weakest: Estimate | None = None
    differences: int = 0


def verdicts(found: StudyResults) -> list[Judged]:
    """Every claim of the study, judged together; none at smoke scale, where values mean nothing."""
    if found.scale == "smoke":
        return []
    study, measured = found.study, found.measured
    each = [claim.differences(measured) for claim in study.claims]
    whys = [_why_none(found, claim, each[i]) for i, claim in enumerate(study.claims)]
    decided = decide([None if why else combine(differences) for why, differences in zip(whys, each, strict=True)])
    judged = []
    for claim, differences, why, (verdict, p) in zip(study.claims, each, whys, decided, strict=True):
        known = [one for one in differences if one is not None]
        weakest = min(known, key=lambda one: one.value) if known else None
        word = verdict if why in ("", ONE_SEED) else NO_VERDICT
        judged.append(Judged(claim, word, why, p, weakest, len(known)))
    return judged


ONE_SEED = "one seed"


def _why_none(found: StudyResults, claim: Claim, differences: Sequence[Estimate | None]) -> str:
    """Why the results cannot say anything about a claim; empty if they can."""
    needed = claim.data or found.study.data
    other = replacement(needed, found.scale)
    if other:
        return f"{other} in place of {needed}"
    if any(one is not None for one in differences):
        return ""
    return ONE_SEED if differences and found.seeds[1] == 1 else "not measured"


def remarks(found: StudyResults) -> list[str]:
    """At which share of epochs and compute curves with a task reach the final value of those without."""
    study, measured = found.study, found.measured
    lines = []
    for metric in study.metrics if study.axis == "epochs" and found.scale != "smoke" else ():
        objectives = {arm.curve: arm.objective for arm in measured.arms}
        for curve, objective in objectives.items():
            base = "+".join(term for term in parse(objective) if not TERMS[term].options.pretext)
            if base not in objectives or base == objective:
                continue
            if crossing(measured, (base, curve), metric) is None:
                lines.append(
                    f"{curve} does not reach the final value of {base} ({metric}) within the measured lengths."
                )
                continue
            shares = [share_text(measured, (base, curve), metric, axis) for axis in (epochs, compute)]
            lines.append(
                f"{curve} reaches the final value of {base} ({metric}) with {shares[0]} of its epochs and {shares[1]} "
                "of its compute (interpolated)."
            )
    return lines


def share_text(measured: Measured, curves: tuple[str, str], metric: str, axis: Axis) -> str:
    """A crossing with its bootstrap interval over seeds; `at most` where the first point is already good enough."""
    share = crossing(measured, curves, metric, axis)
    if share is None:
        return "no share"
    first = axis(measured, measured.curve(curves[1], metric)[0][0])
    end = axis(measured, measured.curve(curves[0], metric)[-1][0])
    text = ("at most " if share * end <= first else "") + f"{share:.2f}"
    interval = crossing_interval(measured, curves, metric, axis)
    if interval is None:
        return f"{text} (one seed)"
    low, high = (f"{limit:.2f}" if isfinite(limit) else "not reached" for limit in interval)
    return f"{text} (95 %: {low} to {high})"


# ---------------------------------------------------------------------------------------------------------------
# Files


def markdown(found: StudyResults) -> str:
    """The table and the claims, for the documentation."""
    study = found.study
    origin = "Ours, not the paper's" if study.source == "ours" else f"{study.source} of the paper"
    head, table_rows = whole_table(found)
    lines = [f"# {study.name}: {study.title}", "", f"{origin}. Scale `{found.scale}`: {found.replaced}."]
    lines += [f"{study.note[:1].upper()}{study.note[1:]}."] if study.note else []
    lines += ["", f"    {found.command}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in table_rows]
    lines += ["", FINE_PRINT]
    claim_rows = claims_table(found)
    if claim_rows:
        lines += ["", "| " + " | ".join(CLAIMS_HEAD) + " |", "|" + "---|" * len(CLAIMS_HEAD)]
        lines += ["| " + " | ".join(row) + " |" for row in claim_rows] + ["", CLAIMS_PRINT]
    lines += [line for remark in remarks(found) for line in ("", remark)]
    if has_figure(study):
        lines += ["", "![the figure](figure.png)"]
    return "\n".join(lines).rstrip() + "\n"


def claims_table(found: StudyResults) -> list[list[str]]:
    """One row per claim: its verdict, the weakest of its differences with its interval, and p after Holm."""
    lines = []
    for judged in verdicts(found):
        verdict = f"{judged.verdict} ({judged.why})" if judged.why else judged.verdict
        weakest = ""
        if judged.weakest is not None:
            low, high = judged.weakest.interval
            count = f", weakest of {judged.differences}" if judged.differences > 1 else ""
            weakest = f"{judged.weakest.value:+.2f} ({low:+.2f} to {high:+.2f}{count})"
        lines.append([judged.claim.text, verdict, weakest, "" if judged.p is None else f"{judged.p:.3f}"])
    return lines


def record(found: StudyResults) -> dict[str, Any]:
    """All results, as results.json contains them: what was measured, and what follows from it."""
    head, table_rows = whole_table(found)
    keys = ("claim", "verdict", "difference", "p")
    return results_record(found) | {
        "claims": [dict(zip(keys, row, strict=True)) for row in claims_table(found)],
        "remarks": remarks(found),
        "table": {"head": head, "rows": table_rows},
        "fine_print": FINE_PRINT,
    }


def write(found: StudyResults, folder: Path) -> Path:
    """Write results.json, README.md, report.html and the figure of a study into a folder."""
    write_page(found, folder)
    write_report(folder)
    return folder


def write_page(found: StudyResults, folder: Path) -> None:
    """Write results.json, README.md and the figure."""
    folder.mkdir(parents=True, exist_ok=True)
    image = plot(found.study, found.measured, found.results)
    if image:
        write_atomically(folder / "figure.png", image)
    write_atomically(folder / "README.md", markdown(found))
    write_atomically(folder / "results.json", json.dumps(record(found), indent=1) + "\n")


# ---------------------------------------------------------------------------------------------------------------
# On a terminal


def show(study: Study, folder: Path) -> None:
    """Print the results that a study's folder contains."""
    if not (folder / "results.json").exists():
        raise RequestError(f"{study.name} has no results in {folder}; run it with `effssl study run {study.name}`")
    try:
        print(read_text(folder / "README.md"))
    except (OSError, ValueError) as error:
        raise RequestError(f"{folder / 'README.md'} cannot be read: {describe(error)}") from None


def print_results(found: StudyResults) -> None:
    """Print the table and the claims."""
    head, table_rows = whole_table(found)
    table(f"{found.study.name} {found.study.title}", tuple(head), [tuple(row) for row in table_rows])
    claim_rows = claims_table(found)
    if claim_rows:
        table("claims", CLAIMS_HEAD, [tuple(row) for row in claim_rows])
    for line in remarks(found):
        print(line)
