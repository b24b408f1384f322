"""`make demo`: BYOL alone, with the rotation task as published, and in its efficient form, measured and drawn.

    python -m effssl.studies.demo [--seeds N] [--out FOLDER] [--data NAME]

Arms run two at a time in processes of one thread each. Runs that are finished are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from effssl.report import write_report
from effssl.run import Run
from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.files import write_atomically
from effssl.runtime.progress import say, table

EPOCHS, SUBSET = 6, 10_000
HEALTH = ["--health.every", "1", "--health.bank", "5000", "--health.queries", "2500"]


@dataclass(frozen=True)
class Arm:
    """One line of the table."""

    name: str
    text: str
    flags: tuple[str, ...]
    longer: int = 1  # times the usual number of epochs


ARMS = (
    # The longest first, so that two processes end at about the same time.
    Arm("paper", "byol+rotation, the paper's form", ("--objective", "byol+rotation", "--form", "paper")),
    Arm("ours", "byol+rotation, efficient", ("--objective", "byol+rotation"), longer=2),  # about byol's compute
    Arm("byol", "byol", ("--objective", "byol")),
)  # fmt: skip
ORDER = ("byol", "ours", "paper")


def main(argv: list[str] | None = None) -> None:
    """Run all arms, print the table, save the plot."""
    parser = argparse.ArgumentParser(prog="effssl demo", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1, help="runs per arm")
    parser.add_argument("--out", default="demo", help="folder for runs, plot and results")
    parser.add_argument("--data", default="", help="cifar10 or digits; by default cifar10 if it can be had")
    args = parser.parse_args(argv)
    out, started = Path(args.out), time.monotonic()
    try:
        data = args.data or choose_data()
        jobs = [(arm, seed) for seed in range(args.seeds) for arm in ARMS]
        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(run_arm, arm, seed, data, out) for arm, seed in jobs]
            try:
                measured = [done.result() for done in running]
            except BaseException:
                pool.shutdown(cancel_futures=True)  # a failed arm ends the demo; those that wait are not begun
                raise
        results = {arm.name: measured[i :: len(ARMS)] for i, arm in enumerate(ARMS)}
        write_atomically(out / "results.json", json.dumps({"data": data, "arms": results}, indent=2) + "\n")
        print_table(results, data, args.seeds)
        draw(results, out / "demo.png")
        compared = write_report([folder_of(out, arm, 0, data) for arm in ARMS], out / "comparison.html")
    except (RequestError, RunFailed) as error:
        print(f"effssl: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, RequestError) else 1)
    say(f"plot: {out / 'demo.png'}   curves: {compared}   runs: {out}/*   ({time.monotonic() - started:.0f} s)")


def choose_data() -> str:
    """CIFAR-10, or the embedded digits where no copy can be had."""
    from effssl.data import open_data

    try:
        open_data("cifar10")
        return "cifar10"
    except RequestError as error:
        say(str(error))
        say("no copy of CIFAR-10 can be had: the demo uses the embedded digits, where figures mean little")
        return "digits"


def folder_of(out: Path, arm: Arm, seed: int, data: str) -> Path:
    """Where an arm's run lies."""
    return out / f"{data}-{arm.name}-{seed}"


def run_arm(arm: Arm, seed: int, data: str, out: Path) -> dict[str, Any]:
    """Train one arm in a process of its own, show its lines as they come, and measure it while others still train."""
    command = [sys.executable, "-m", "effssl", "pretrain", "--data", data, "--recipe", "cpu-byol", *arm.flags]
    command += [
        "--epochs",
        str(EPOCHS * arm.longer),
        "--seed",
        str(seed),
        *HEALTH,
        "--device",
        "cpu",
        "--resume",
        "auto",
    ]
    command += ["--subset", str(SUBSET)] if data == "cifar10" else []
    command += ["--out", str(folder_of(out, arm, seed, data))]
    # Two threads on two cores would fight with the other arm; one each is the fastest.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    last = ""
    for line in process.stderr:
        last = line.rstrip() or last
        if line.startswith("epoch"):
            with _printing:
                say(f"{arm.name:5}  {line.rstrip()}")
    if process.wait():
        raise RunFailed(f"{arm.text}: {last}")
    import torch

    torch.set_num_threads(1)  # the other core is training
    return measure(out, arm, seed, data)


_printing = threading.Lock()


def measure(out: Path, arm: Arm, seed: int, data: str) -> dict[str, Any]:
    """Scores on test, cost, and the validation curve of a finished run."""
    run = Run(folder_of(out, arm, seed, data))
    stored = run.results()
    knn = stored["knn"]["value"] if "knn" in stored else run.knn().accuracy
    linear = stored["linear"]["value"] if "linear" in stored else run.linear().accuracy
    lines = run.metrics()
    return {
        "knn": knn,
        "linear": linear,
        "epochs": lines[-1]["epoch"],
        "seconds": lines[-1]["seconds"],
        "flops": lines[-1]["flops"],
        "curve": [{"epoch": x["epoch"], "flops": x["flops"], "knn": x["knn"]} for x in lines if "knn" in x],
    }


def epochs_to_reach(curve: list[dict[str, Any]], level: float) -> int | None:
    """The first epoch at which the validation kNN is at least `level`."""
    return next((point["epoch"] for point in curve if point["knn"] >= level), None)


def print_table(results: dict[str, list[dict[str, Any]]], data: str, seeds: int) -> None:
    """One row per arm."""
    base = results["byol"]

    def spread(values: list[float], digits: int = 1) -> str:
        return f"{mean(values):.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")

    rows = []
    texts = {arm.name: arm.text for arm in ARMS}
    costs = {name: mean(r["flops"] / b["flops"] for r, b in zip(results[name], base, strict=True)) for name in ORDER}
    for name in ORDER:
        runs = results[name]
        reach = [epochs_to_reach(r["curve"], b["curve"][-1]["knn"]) for r, b in zip(runs, base, strict=True)]
        shown = "/".join("never" if epochs is None else str(epochs) for epochs in reach)
        rows.append(
            (texts[name], spread([r["knn"] for r in runs]), spread([r["linear"] for r in runs]), str(runs[0]["epochs"]),
             spread([r["seconds"] for r in runs], 0), f"{costs[name]:.2f}", shown)
        )  # fmt: skip
    header = ("arm", "kNN %", "linear %", "epochs", "seconds", "compute", "to byol")
    size = f"{SUBSET} images" if data == "cifar10" else "all images"
    table(f"{data}, {size}, small encoder, {seeds} seed{'s' * (seeds > 1)}; scores on test", header, rows)
    for name in ORDER[1:]:
        gains = [r["knn"] - b["knn"] for r, b in zip(results[name], base, strict=True)]
        word = "gains" if mean(gains) > 0 else "shows no gain:"
        say(f"{texts[name]} {word} {spread(gains)} points of kNN over byol with {costs[name]:.2f} of its compute")
    say("compute: counted FLOPs of the run, forward and backward, as a multiple of byol's;")
    say("to byol: first epoch at which the arm's validation kNN reaches byol's final one, per seed")


def draw(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """kNN on the validation split against epochs and against compute."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    texts = {arm.name: arm.text for arm in ARMS}
    for name, style in zip(ORDER, ("k--o", "C0-s", "C1-^"), strict=True):
        for axis, key, scale in ((axes[0], "epoch", 1.0), (axes[1], "flops", 1e-12)):
            curves = [r["curve"] for r in results[name]]
            x = [point[key] * scale for point in curves[0]]
            y = [mean(c[i]["knn"] for c in curves) for i in range(len(x))]
            axis.plot(x, y, style, label=texts[name], markersize=4)
    axes[0].set(xlabel="epochs", ylabel="kNN accuracy on validation, %")
    axes[1].set(xlabel="compute, TFLOP (counted)")
    axes[0].legend(frameon=False, fontsize=8)
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
