"""`make demo`: BYOL alone, with the rotation task as published, and with its efficient form, as a table and a figure.

    python -m effssl.studies.demo [--seeds N] [--out FOLDER] [--data NAME]

A small study at CPU scale. Two arms run at a time; finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from effssl.report import write_report
from effssl.run import RunFolder
from effssl.runtime.errors import RequestError, RunFailed, Stopped, speaking_flags
from effssl.runtime.files import check_writable, write_atomically
from effssl.runtime.progress import say, table
from effssl.runtime.reading import describe, read_json
from effssl.studies.plan import ArmRun, Setup, plan_runs
from effssl.studies.runner import ArmResult, run_arms
from effssl.studies.scales import CPU
from effssl.studies.study import Arm, Study
from effssl.verbs import Run

EVERY_EPOCH = {"every": 1, "bank": 5000, "queries": 2500}  # how the validation curves of the figure are evaluated
BASE, EFFICIENT, PAPER = "byol", "byol+rotation, efficient", "byol+rotation, the paper's form"
FOLDERS = {BASE: "byol", EFFICIENT: "efficient", PAPER: "paper"}
STYLES = {BASE: "k--o", EFFICIENT: "C0-s", PAPER: "C1-^"}
Numbers = dict[str, Any]  # of one run, as results.json contains them


def demo_study(data: str = "cifar10") -> Study:
    """The demo as a study; the efficient form has twice the epochs, at about BYOL's compute."""
    flags: dict[str, Any] = {"data": data, "device": "cpu", "health": EVERY_EPOCH}
    flags |= {} if data == "cifar10" else {"subset": 0}
    arms = (  # the longest first, so that two processes end at about the same time
        Arm(PAPER, "byol+rotation", flags=flags),
        Arm(EFFICIENT, "byol+rotation", flags=flags, length=2, efficient=True),
        Arm(BASE, "byol", flags=flags),
    )
    return Study("demo", "BYOL with and without rotation", "ours", "cifar10", 200, ("knn", "linear"), arms, ())


@speaking_flags()
def main(argv: list[str] | None = None) -> None:
    """Run all arms, print the table, write the figure and the comparison."""
    parser = argparse.ArgumentParser(prog="effssl demo", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1, help="runs per arm")
    parser.add_argument("--out", default="demo", help="folder for runs, figure and results")
    parser.add_argument("--data", default="", help="cifar10 or digits; by default cifar10 if it can be downloaded")
    args = parser.parse_args(argv)
    try:
        run_demo(args.data or choose_data(), args.seeds, Path(args.out))
    except (RequestError, RunFailed, Stopped) as error:
        print(f"effssl: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, RequestError) else 75 if isinstance(error, Stopped) else 1)


def choose_data() -> str:
    """CIFAR-10, or the embedded digits where CIFAR-10 is not available."""
    from effssl.data import open_data

    try:
        open_data("cifar10")
        return "cifar10"
    except RequestError as error:
        say(str(error))
        say("CIFAR-10 is not available: the demo uses the embedded digits, on which the values mean little")
        return "digits"


def run_demo(data: str, seeds: int, out: Path) -> None:
    """Run the study and show its results."""
    started = time.monotonic()
    if seeds < 1:
        raise RequestError(f"--seeds is {seeds}; it must be at least 1")
    check_writable(out)
    if (out / "results.json").exists():
        read_free_scores(out / "results.json")  # before anything slow
    planned = plan_runs(demo_study(data), Setup("cpu", seeds, out))
    runs = [replace(run, folder=out / f"{data}-{FOLDERS[run.arm.name]}-{run.seed}") for run in planned]
    found = run_arms(runs, jobs=2, on_line=show_epoch)
    if failed := [result for result in found if result.failed]:
        raise RunFailed(f"{failed[0].run.arm.name}: {failed[0].failed}")
    results = {name: [numbers(result) for result in found if result.run.arm.name == name] for name in FOLDERS}
    by_folder = {FOLDERS[name]: values for name, values in results.items()}
    free = free_scores(runs[-1].folder, out / "results.json")
    record = {"data": data, "free": free, "arms": by_folder}
    write_atomically(out / "results.json", json.dumps(record, indent=2) + "\n")
    print_table(results, data, free)
    write_figure(results, out / "demo.png")
    comparison = write_report([run.folder for run in runs if run.seed == 0], out / "comparison.html")
    say(f"figure: {out / 'demo.png'}   curves: {comparison}   runs: {out}/*   ({time.monotonic() - started:.0f} s)")


def free_scores(folder: Path, known: Path) -> dict[str, Numbers]:
    """The scores of what costs nothing: raw pixels, and the network before any training."""
    from effssl.evaluation import evaluate
    from effssl.features.whitening import untrained_encoder
    from effssl.network.foreign import open_foreign

    if known.is_file():
        return read_free_scores(known)
    run = Run(folder)
    data = run.data()
    encoders = {"raw pixels": open_foreign("pixels"), "untrained": untrained_encoder(data.train, run.encoder())}
    return {
        name: {what: evaluate(what, encoder, data).value for what in ("knn", "linear")}
        for name, encoder in encoders.items()
    }


def read_free_scores(known: Path) -> dict[str, Numbers]:
    """Those of an earlier demo; any other file is refused, since it would be replaced."""
    try:
        found = read_json(known)["free"]
        scores = {name: {what: float(values[what]) for what in ("knn", "linear")} for name, values in found.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        reason = f"{known} is not the result of a demo and would be replaced ({describe(error)})"
        raise RequestError(f"{reason}; choose another --out") from None
    if not all(math.isfinite(value) for values in scores.values() for value in values.values()):
        raise RequestError(f"{known} holds scores that are not finite; delete it")
    return scores


def show_epoch(run: ArmRun, line: str) -> None:
    """Show the lines of a child that report an epoch."""
    if line.startswith("epoch"):
        say(f"{FOLDERS[run.arm.name]:9}  {line}")


def numbers(result: ArmResult) -> Numbers:
    """Test scores, cost and validation curve of a run."""
    lines = RunFolder(result.run.folder).metrics()
    return {
        **result.values,
        "epochs": lines[-1]["epoch"],
        "seconds": result.seconds,
        "flops": result.flops,
        "curve": [{"epoch": x["epoch"], "flops": x["flops"], "knn": x["knn"]} for x in lines if "knn" in x],
    }


def epochs_to_reach(curve: Sequence[Numbers], level: float) -> int | None:
    """The first epoch at which the validation kNN is at least `level`."""
    return next((point["epoch"] for point in curve if point["knn"] >= level), None)


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean ± standard deviation."""
    return f"{mean(values):.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")


def print_table(results: dict[str, list[Numbers]], data: str, free: dict[str, Numbers]) -> None:
    """Print what costs nothing, one row per arm, and the gains over BYOL."""
    base = results[BASE]
    costs = {name: mean(r["flops"] for r in runs) / mean(r["flops"] for r in base) for name, runs in results.items()}
    rows = [(name, f"{one['knn']:.1f}", f"{one['linear']:.1f}", *[""] * 4) for name, one in free.items()]
    for name, runs in results.items():
        reach = [epochs_to_reach(r["curve"], b["curve"][-1]["knn"]) for r, b in zip(runs, base, strict=True)]
        reached = "/".join("never" if epochs is None else str(epochs) for epochs in reach)
        rows.append(
            (name, spread([r["knn"] for r in runs]), spread([r["linear"] for r in runs]), str(runs[0]["epochs"]),
             spread([r["seconds"] for r in runs], 0), f"{costs[name]:.2f}", reached)
        )  # fmt: skip
    size = f"{CPU['subset']} images" if data == "cifar10" else "all images"
    seeds = f"{len(base)} seed{'s' * (len(base) > 1)}"
    header = ("arm", "kNN %", "linear %", "epochs", "seconds", "compute", "to byol")
    table(f"{data}, {size}, small encoder, {seeds}; scores on test", header, rows)
    for name in (EFFICIENT, PAPER):
        gains = [r["knn"] - b["knn"] for r, b in zip(results[name], base, strict=True)]
        verb = "gains" if mean(gains) > 0 else "shows no gain:"
        say(f"{name} {verb} {spread(gains)} points of kNN over byol with {costs[name]:.2f} of its compute")
    say("compute: counted FLOPs of the run, forward and backward, as a multiple of byol's;")
    say("to byol: first epoch at which the arm's validation kNN reaches byol's final one, per seed")


def write_figure(results: dict[str, list[Numbers]], path: Path) -> None:
    """Plot kNN on the validation split against epochs and against compute."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for name, runs in results.items():
        curves = [run["curve"] for run in runs]
        y = [mean(curve[i]["knn"] for curve in curves) for i in range(len(curves[0]))]
        for axis, key, scale in ((axes[0], "epoch", 1.0), (axes[1], "flops", 1e-12)):
            x = [point[key] * scale for point in curves[0]]
            axis.plot(x, y, STYLES[name], label=name, markersize=4)
    axes[0].set(xlabel="epochs", ylabel="kNN accuracy on validation, %")
    axes[1].set(xlabel="compute, TFLOP (counted)")
    axes[0].legend(frameon=False, fontsize=8)
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
