"""What a study found: a table beside the published one, claims, cost, and the figure where the paper has one."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from effssl.objectives.expression import parse
from effssl.objectives.options import PRETEXT
from effssl.report import write_report
from effssl.runtime.device import processor
from effssl.runtime.errors import RequestError
from effssl.runtime.files import write_atomically
from effssl.runtime.progress import table
from effssl.studies.plan import substitute
from effssl.studies.runner import Outcome
from effssl.studies.study import Arm, Claim, Figures, Study, compute, crossing, epochs

WORDS = {True: "held", False: "not held", None: "not decided at this scale"}
FINE_PRINT = (
    "Published numbers are the paper's; ours are test scores, mean ± standard deviation over seeds, one run where "
    "there is no deviation. TFLOP (counted) and seconds (by the clock) are those of training one run; "
    "seconds tell little where the machine did other things besides."
)
STYLES = ("k-o", "C1-^", "C0-s", "C2-d", "C3-v")


def figures(study: Study, outcomes: Sequence[Outcome]) -> Figures:
    """All values by arm and measure."""
    values: dict[tuple[str, str], list[float]] = {}
    for found in outcomes:
        for name, value in found.values.items():
            values.setdefault((found.job.arm.name, name), []).append(value)
    arms = [arm for arm in study.arms if any(o.job.arm.name == arm.name for o in outcomes)]
    flops = {a.name: [o.flops for o in outcomes if o.job.arm.name == a.name and o.flops] for a in arms}
    return Figures(values, arms, {name: mean(some) for name, some in flops.items() if some})


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation."""
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def base_of(arm: Arm, arms: Sequence[Arm]) -> Arm | None:
    """The arm without pretext tasks that this one is compared with: same place on the axis, same settings."""
    plain = [term for term in parse(arm.objective) if term not in PRETEXT]
    if not plain or len(plain) == len(parse(arm.objective)):
        return None
    same = [a for a in arms if a.objective == "+".join(plain) and a.data == arm.data and a is not arm]
    at = [a for a in same if a.at == arm.at and a.length == arm.length]
    exact = [a for a in at if {k: v for k, v in arm.flags.items() if k != "rotation"} == dict(a.flags)]
    return (exact or at or [a for a in same if a.at is None] or [None])[0]  # type: ignore[list-item]


def rows(study: Study, f: Figures, outcomes: Sequence[Outcome]) -> list[list[str]]:
    """One row per arm: each measure with what was published, the gain over its base, and how that compares."""
    lines = []
    for arm in f.arms:
        some = [o for o in outcomes if o.job.arm.name == arm.name]
        line = [arm.name]
        base = base_of(arm, f.arms)
        for measure in study.measures:
            values = f.values.get((arm.name, measure), ())
            why = next((o.failed or o.missing.get(measure, "") for o in some if measure not in o.values), "")
            line.append(spread(values) if values else f"none ({why or 'not run'})")
            line.append(f"{arm.published[measure]:.2f}" if measure in arm.published else "")
            line.append(_gains(f, arm, base, measure))
        ran = [o for o in some if o.seconds]
        line.append(str(some[0].job.flags["epochs"]))
        line.append(f"{mean(o.seconds for o in ran):.0f}" if ran else "")
        line.append(f"{mean(o.flops for o in ran) / 1e12:.2f}" if ran else "")
        line.append(str(len(ran)))
        lines.append(line)
    return lines


def _gains(f: Figures, arm: Arm, base: Arm | None, measure: str) -> str:
    """Our gain over the base, the published one, and their difference."""
    if base is None:
        return ""
    ours, theirs = f.mean(arm.name, measure), f.mean(base.name, measure)
    text = "" if ours is None or theirs is None else f"{ours - theirs:+.2f}"
    if text and measure in arm.published and measure in base.published:
        published = arm.published[measure] - base.published[measure]
        text += f" / {published:+.2f} / {ours - theirs - published:+.2f}"  # type: ignore[operator]
    return text


def whole_table(study: Study, f: Figures, outcomes: Sequence[Outcome]) -> tuple[list[str], list[list[str]]]:
    """Names of the columns and the rows, without columns that nothing is in."""
    head, lines = header(study), rows(study, f, outcomes)
    kept = [i for i in range(len(head)) if any(line[i] for line in lines)]
    return [head[i] for i in kept], [[line[i] for i in kept] for line in lines]


def header(study: Study) -> list[str]:
    """Names of the columns."""
    each = [(f"{m}, ours", "published", "gain: ours / published / difference") for m in study.measures]
    return ["arm", *(name for names in each for name in names), "epochs", "seconds", "TFLOP", "seeds"]


def verdicts(study: Study, f: Figures) -> list[tuple[Claim, str]]:
    """Each claim and what became of it."""
    return [(claim, WORDS[claim.check(f)]) for claim in study.claims]


def remarks(study: Study, f: Figures) -> list[str]:
    """Where curves with a task reach the end of those without, in epochs and in counted compute."""
    found = []
    for measure in study.measures if study.axis == "epochs" else ():
        kinds = {arm.curve: arm.objective for arm in f.arms}
        for more, objective in kinds.items():
            base = "+".join(t for t in parse(objective) if t not in PRETEXT)
            if base not in kinds or base == more:
                continue
            place, cost = (crossing(f, base, more, measure, axis) for axis in (epochs, compute))
            if place is None or cost is None:
                found.append(f"{more} does not reach the end of {base} ({measure}) within the measured lengths.")
            else:
                shares = f"{place:.2f} of its epochs and {cost:.2f} of its compute"
                found.append(f"{more} reaches the end of {base} ({measure}) at {shares}, by lines between points.")
    return found


def markdown(study: Study, scale: str, f: Figures, outcomes: Sequence[Outcome], command: str) -> str:
    """The table and the claims, for docs."""
    origin = "Ours, not the paper's" if study.source == "ours" else f"{study.source} of the paper"
    head, found = whole_table(study, f, outcomes)
    lines = [
        f"# {study.name}: {study.title}",
        "",
        f"{origin}. Scale `{scale}`: {substitute(study, scale)}.",
    ]
    lines += [f"{study.note[:1].upper()}{study.note[1:]}."] if study.note else []
    lines += ["", f"    {command}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in found]
    lines += ["", FINE_PRINT, "", "| claim | |", "|---|---|"]
    lines += [f"| {claim.text} | {word} |" for claim, word in verdicts(study, f)]
    lines += [line for remark in remarks(study, f) for line in ("", remark)]
    return "\n".join(lines).rstrip() + "\n"


def record(study: Study, scale: str, f: Figures, outcomes: Sequence[Outcome], command: str) -> dict[str, Any]:
    """Everything, for a program to read."""
    runs = [
        {"arm": o.job.arm.name, "seed": o.job.seed, "objective": o.job.arm.objective, "at": o.job.arm.at,
         "curve": o.job.arm.curve, "epochs": o.job.flags["epochs"],
         "config": o.job.folder.name, "values": o.values, "missing": o.missing, "failed": o.failed,
         "seconds": o.seconds, "flops": o.flops, "published": dict(o.job.arm.published)}
         | ({"snr": [line["snr"] for line in snr(o)]} if "snr" in study.measures else {})
        for o in outcomes
    ]  # fmt: skip
    machine = {"processor": processor(), "cores": os.cpu_count(), "torch": version("torch")}
    claims = [{"claim": claim.text, "verdict": word} for claim, word in verdicts(study, f)]
    about = {"study": study.name, "title": study.title, "scale": scale, "substitute": substitute(study, scale)}
    return about | {
        "command": command,
        "machine": machine,
        "runs": runs,
        "claims": claims,
        "remarks": remarks(study, f),
        "table": dict(zip(("head", "rows"), whole_table(study, f, outcomes), strict=True)),
        "fine_print": FINE_PRINT,
    }


def draw(study: Study, f: Figures, outcomes: Sequence[Outcome]) -> bytes | None:
    """The figure, where there is one: accuracy along the axis (and against compute), or SNR over steps."""
    if not study.axis and "snr" not in study.measures:
        return None
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = 2 if study.axis == "epochs" else 1
    figure, axes = plt.subplots(1, panels, figsize=(5.2 * panels, 3.8), layout="constrained", squeeze=False)
    kinds = list(dict.fromkeys(arm.curve for arm in f.arms))
    ran = {o.job.arm.name: o.job.flags["epochs"] for o in outcomes}
    for kind, style in zip(kinds, STYLES, strict=False):
        if "snr" in study.measures:
            _draw_snr(axes[0, 0], kind, style, outcomes)
            continue
        measure = study.measures[0]
        points = [(arm, f.values[arm.name, measure]) for arm, _ in f.curve(kind, measure)]
        if len(points) == 1 and points[0][0].at is None:
            axes[0, 0].axhline(mean(points[0][1]), color=style[:2] if style[0] == "C" else "k", ls=":", label=kind)
            continue
        y = [mean(values) for _, values in points]
        error = [stdev(values) if len(values) > 1 else 0.0 for _, values in points]
        places = [ran[arm.name] if study.axis == "epochs" else arm.at for arm, _ in points]
        x = [places, [compute(f, arm) / 1e12 for arm, _ in points]]
        for panel in range(panels):
            axes[0, panel].errorbar(x[panel], y, error, fmt=style, capsize=3, label=kind)
    labels = ["step, epochs"] if "snr" in study.measures else [study.axis, "TFLOP of training"]
    for panel in range(panels):
        unit = "signal-to-noise ratio" if "snr" in study.measures else f"{study.measures[0]} %"
        axes[0, panel].set(xlabel=labels[panel], ylabel=unit)
        axes[0, panel].grid(alpha=0.3)
    axes[0, 0].legend(frameon=False, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    plt.close(figure)
    return buffer.getvalue()


def snr(found: Outcome) -> list[dict[str, Any]]:
    """The log's lines with the gradient's signal-to-noise ratio."""
    from effssl.run import Run

    return [] if found.failed else [line for line in Run(found.job.folder).metrics() if "snr" in line]


def _draw_snr(axis: Any, kind: str, style: str, outcomes: Sequence[Outcome]) -> None:
    for found in outcomes:
        if found.job.arm.curve == kind and not found.failed:
            lines = snr(found)
            label = kind if found.job.seed == 0 else None
            axis.plot([line["epoch"] for line in lines], [line["snr"] for line in lines], style, label=label)


def write(study: Study, scale: str, outcomes: Sequence[Outcome], command: str, folder: Path) -> Path:
    """results.json, README.md, report.html and the figure of a study, in a folder."""
    f = figures(study, outcomes)
    folder.mkdir(parents=True, exist_ok=True)
    text, picture = markdown(study, scale, f, outcomes, command), draw(study, f, outcomes)
    if picture:
        write_atomically(folder / "figure.png", picture)
        text += "\n![the figure](figure.png)\n"
    write_atomically(folder / "README.md", text)
    found = record(study, scale, f, outcomes, command)
    write_atomically(folder / "results.json", json.dumps(found, indent=1) + "\n")
    write_report(folder)
    return folder


def show(study: Study, folder: Path) -> None:
    """Print what a study's folder holds."""
    if not (folder / "results.json").exists():
        raise RequestError(f"{study.name} has no results in {folder}; run it with `effssl study run {study.name}`")
    print((folder / "README.md").read_text())


def print_results(study: Study, outcomes: Sequence[Outcome]) -> None:
    """The table and the claims, on a terminal."""
    f = figures(study, outcomes)
    head, found = whole_table(study, f, outcomes)
    table(f"{study.name} {study.title}", tuple(head), [tuple(row) for row in found])
    table("claims", ("claim", ""), [(claim.text, word) for claim, word in verdicts(study, f)])
    for line in remarks(study, f):
        print(line)
