"""Accuracy against compute: base methods, the paper's rotation task and ours, every point a run with its own schedule.

python -m benchmarks.compute [--methods byol simclr simsiam swav] [--seeds 3] [--jobs 2] [--all] [--plot FILE]

CIFAR-10, 10,000 images, the small encoder. Runs that are finished are not repeated, interrupted ones go on. Nothing is
chosen here: settings are those of the recipes, which were chosen on the validation split; test is read once per run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from effssl.files import write_atomically
from effssl.progress import say, table
from effssl.run import Run

METHODS = ("byol", "simclr", "simsiam", "swav")
AS_PUBLISHED = ("--rotation.size", "0", "--rotation.update-stats")
FORMS: dict[str, tuple[str, tuple[str, ...], tuple[int, ...]]] = {
    # name: task, flags, epochs
    "base": ("", (), (2, 6)),
    "paper": ("+rotation", AS_PUBLISHED, (3,)),
    "ours": ("+rotation", (), (1, 2, 5)),
}
FEWER = {"base": (6,), "paper": (), "ours": (2, 5)}  # lengths for methods other than the first
WORDS = {"base": "base", "paper": "+ rotation, the paper's form", "ours": "+ rotation, ours"}
COMMON = ("--data", "cifar10", "--subset", "10000", "--health.every", "1000", "--device", "cpu", "--resume", "auto")


def one(method: str, form: str, epochs: int, seed: int, out: Path) -> dict[str, Any]:
    """Train and measure one run in a process of one thread."""
    task, flags, _ = FORMS[form]
    folder = out / f"{method}-{form}-{epochs}-{seed}"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def effssl(*args: str) -> None:
        subprocess.run([sys.executable, "-m", "effssl", *args], check=True, env=environment, capture_output=True)

    command = ("--objective", method + task, *flags, *COMMON, "--epochs", str(epochs), "--seed", str(seed), "--quiet")
    effssl("pretrain", *command, "--no-report", "--out", str(folder))
    scores = {}
    for what in ("knn", "linear"):
        if not (folder / f"{what}.json").exists():
            effssl("eval", what, str(folder), "--out", str(folder / f"{what}.json"))
        scores[what] = json.loads((folder / f"{what}.json").read_text())["value"]
    last = Run(folder).metrics()[-1]
    say(f"{folder.name}: kNN {scores['knn']:.2f}, linear {scores['linear']:.2f}, {last['seconds']:.0f} s")
    about = {"method": method, "form": form, "epochs": epochs, "seed": seed}
    return about | scores | {"seconds": last["seconds"], "tflop": last["flops"] / 1e12}


def spread(values: list[float]) -> str:
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def show(results: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """One row per method, form and length; compute and seconds relative to the base's longest runs."""
    rows = []
    for method in dict.fromkeys(r["method"] for r in results):
        of_method = [r for r in results if r["method"] == method]
        longest = [r for r in of_method if r["form"] == "base" and r["epochs"] == max(FORMS["base"][2])]
        for form, (_, _, lengths) in FORMS.items():
            for epochs in lengths:
                some = [r for r in of_method if r["form"] == form and r["epochs"] == epochs]
                if not some or not longest:
                    continue
                cost = [mean(r[key] for r in some) / mean(r[key] for r in longest) for key in ("tflop", "seconds")]
                scores = [spread([r[key] for r in some]) for key in ("knn", "linear")]
                rows.append((method, WORDS[form], str(epochs), *(f"{c:.2f}" for c in cost), *scores, str(len(some))))
    header = ("method", "form", "epochs", "compute", "seconds", "kNN", "linear", "seeds")
    table("CIFAR-10, 10,000 images, small encoder; each row has its own schedule", header, rows)
    return rows


def draw(results: list[dict[str, Any]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    methods = list(dict.fromkeys(r["method"] for r in results))
    figure, axes = plt.subplots(2, len(methods), figsize=(3.2 * len(methods), 5.6), layout="constrained", squeeze=False)
    styles = {"base": "k-o", "paper": "C1-^", "ours": "C0-s"}
    for column, method in enumerate(methods):
        base = [r["tflop"] for r in results if r["method"] == method and r["form"] == "base"]
        for row, key in enumerate(("knn", "linear")):
            axis = axes[row, column]
            for form, style in styles.items():
                some = [r for r in results if r["method"] == method and r["form"] == form]
                lengths = sorted({r["epochs"] for r in some})
                points = [[r for r in some if r["epochs"] == n] for n in lengths]
                x = [mean(r["tflop"] for r in p) / max(base) for p in points]
                error = [stdev([r[key] for r in p]) if len(p) > 1 else 0 for p in points]
                axis.errorbar(
                    x, [mean(r[key] for r in p) for p in points], error, fmt=style, capsize=3, label=WORDS[form]
                )
            axis.set(xlim=0, ylabel=f"{'kNN' if key == 'knn' else key} %" if column == 0 else "")
            axis.grid(alpha=0.3)
        axes[0, column].set_title(method)
        axes[1, column].set_xlabel(f"compute, longest {method} = 1")
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compute")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--forms", nargs="+", default=tuple(FORMS), choices=tuple(FORMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", default="runs/compute")
    parser.add_argument("--all", action="store_true", help="all forms and lengths for every method, not only for byol")
    parser.add_argument("--plot", default="")
    args = parser.parse_args()
    out = Path(args.out)
    jobs = [
        (method, form, epochs, seed)
        for seed in range(args.seeds)
        for method in args.methods
        for form in args.forms
        for epochs in (FORMS[form][2] if method == METHODS[0] or args.all else FEWER[form])
    ]
    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda job: one(*job, out), jobs))
    write_atomically(out / "results.json", json.dumps(results, indent=1) + "\n")
    show(results)
    if args.plot:
        draw(results, args.plot)


if __name__ == "__main__":
    main()
