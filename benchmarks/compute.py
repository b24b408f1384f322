"""Draw and tabulate accuracy against compute from the results of C01 to C04.

python -m benchmarks.compute [--results docs/results] [--plot docs/compute.png]

The runs are those of `effssl study run C01 --scale cpu --seeds 3` and so on: CIFAR-10, 10,000 images, small encoder,
every point with its own schedule. Nothing is chosen here, and nothing is run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

STUDIES = {"byol": "C01", "simsiam": "C03", "swav": "C04", "simclr": "C02"}
FORMS = {"": "base", "+rotation": "with rotation, the paper's form", "+rotation, efficient": "with rotation, efficient"}
STYLES = ("k-o", "C1-^", "C0-s")


def points(runs: list[dict[str, Any]], curve: str) -> list[list[dict[str, Any]]]:
    """The runs of a curve, grouped by their length."""
    some = [r for r in runs if r["curve"] == curve and "knn" in r["values"]]
    return [[r for r in some if r["epochs"] == n] for n in sorted({r["epochs"] for r in some})]


def spread(values: list[float]) -> str:
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def rows(method: str, runs: list[dict[str, Any]]) -> list[str]:
    """Lines of a Markdown table; compute relative to the base's longest runs (seconds: benchmarks.forms)."""
    longest = points(runs, method)[-1]
    lines = []
    for form, words in FORMS.items():
        for some in points(runs, method + form):
            cost = mean(r["flops"] for r in some) / mean(r["flops"] for r in longest)
            scores = [spread([r["values"][key] for r in some]) for key in ("knn", "linear")]
            cells = (f"`{method}`", words, str(some[0]["epochs"]), f"{cost:.2f}", *scores, str(len(some)))
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(found), figsize=(3.2 * len(found), 5.6), layout="constrained", squeeze=False)
    for column, (method, runs) in enumerate(found.items()):
        most = mean(r["flops"] for r in points(runs, method)[-1])
        for row, key in enumerate(("knn", "linear")):
            axis = axes[row, column]
            for (form, words), style in zip(FORMS.items(), STYLES, strict=True):
                groups = points(runs, method + form)
                values = [[r["values"][key] for r in some] for some in groups]
                x = [mean(r["flops"] for r in some) / most for some in groups]
                error = [stdev(v) if len(v) > 1 else 0.0 for v in values]
                axis.errorbar(x, [mean(v) for v in values], error, fmt=style, capsize=3, label=words)
            axis.set(xlim=0, ylabel=f"{'kNN' if key == 'knn' else key} %" if column == 0 else "")
            axis.grid(alpha=0.3)
        axes[0, column].set_title(method)
        axes[1, column].set_xlabel(f"compute, longest {method} = 1")
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compute")
    parser.add_argument("--results", type=Path, default=Path("docs/results"))
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    files = {method: args.results / f"{name}-cpu" / "results.json" for method, name in STUDIES.items()}
    found = {method: json.loads(path.read_text())["runs"] for method, path in files.items() if path.exists()}
    print("| method | form | epochs | compute | kNN | linear | seeds |\n" + "|" + "---|" * 7)
    for method, runs in found.items():
        print("\n".join(rows(method, runs)))
    if args.plot:
        draw(found, args.plot)


if __name__ == "__main__":
    main()
