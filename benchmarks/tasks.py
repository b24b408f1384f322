"""What pretext tasks add to each base method in a short run on CIFAR-10, beside a control with the same views.

python -m benchmarks.tasks                  tune, then train and evaluate; measured rows are not repeated
python -m benchmarks.tasks --bases simclr   for some bases only
python -m benchmarks.tasks --table          the page's table from the stored rows

Every base has three trials of its learning rate and every task three trials of its own settings, on the kNN accuracy of
validation images. The best trial is then repeated with more seeds. Features are h and the late maps, whitened, without
k-means patches, so that the figures are those of the network. Rows are appended to benchmarks/tasks.jsonl.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.speedrun import commit

ROWS = Path(__file__).with_name("tasks.jsonl")
RUNS = Path("runs/tasks")
RECIPE = "budget-simclr-1m"
BASES: dict[str, list[str]] = {
    "simclr": [],
    "vicreg": ["--projector.out", "256"],
    "byol": ["--byol.momentum", "0.95", "--byol.predictor-hidden", "512"],
    "moco": ["--moco.temperature", "0.1", "--moco.queue", "4096", "--moco.momentum", "0.99"],
    "swav": ["--swav.prototypes", "100", "--swav.epsilon", "0.03", "--swav.freeze-epochs", "0.1"],
    "simsiam": ["--projector.out", "512", "--projector.output-norm", "--simsiam.predictor-hidden", "128"],
}
"""What differs from the recipe, by base method: the settings of the recipes cpu-<base>."""
LEARNING_RATES = ("0.02", "0.05", "0.1")
ROTATED = ["--views.rotated.copy-of", "", "--views.rotated.count", "2", "--views.rotated.size", "0.5"]
CROPS = ["--views.small.count", "2", "--views.small.size", "0.5", "--views.small.scale", "0", "0"]
ONLINE = ["--views.rotated.online", "--views.rotated.angle-embedding"]
ARMS: dict[str, dict[str, list[str]]] = {
    "base": {f"lr {lr}": ["--lr", lr] for lr in LEARNING_RATES},
    "control": {"two more crops": CROPS},
    "rotation": {
        "λ 0.1, crops online": [*ROTATED, *ONLINE, "--rotation.on", "h", "--rotation.weight", "0.1"],
        "λ 0.5, crops online": [*ROTATED, *ONLINE, "--rotation.on", "h", "--rotation.weight", "0.5"],
        "λ 0.5, crops for the task alone": [*ROTATED, "--rotation.on", "h", "--rotation.weight", "0.5"],
    },
    "words": {f"λ {weight}": ["--words.weight", weight] for weight in ("1", "5", "20")},
}  # fmt: skip
"""Trials by arm. The control has two crops of half the side, as rotation has them, and no labels."""
SEEDS = 3


@dataclass(frozen=True)
class Trial:
    """One run: what it is called, and its flags."""

    base: str
    arm: str
    name: str
    flags: tuple[str, ...]
    seed: int

    @property
    def key(self) -> list[Any]:
        """What identifies its row."""
        return [self.base, self.arm, self.name, self.seed]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks")
    parser.add_argument("--bases", nargs="+", default=list(BASES), choices=list(BASES))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if not args.table:
        for seeds in range(1, args.seeds + 1):  # a seed more for all bases, then the next
            for base in args.bases:
                for _ in chosen(base, seeds):
                    pass
    print(table(stored_rows(), args.seeds))


def chosen(base: str, seeds: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The rows of the best trial of each arm, one per seed; trains what is missing."""
    lr: list[str] = []
    for arm, trials in ARMS.items():
        tried = {name: measured(Trial(base, arm, name, (*lr, *flags), 0)) for name, flags in trials.items()}
        best = max(tried, key=lambda name: tried[name]["validation_knn"])
        if arm == "base":
            lr = trials[best]
        flags = (*lr, *(trials[best] if arm != "base" else ()))
        yield arm, [measured(Trial(base, arm, best, flags, seed), test=True) for seed in range(seeds)]


def measured(trial: Trial, test: bool = False) -> dict[str, Any]:
    """The stored row of a trial, or a new one; with test accuracy if asked."""
    rows = [row for row in stored_rows() if row["key"] == trial.key and ("linear" in row or not test)]
    return rows[-1] if rows else train(trial, test)


def train(trial: Trial, test: bool) -> dict[str, Any]:
    """Train one run and store its row."""
    objective = trial.base + ("" if trial.arm in ("base", "control") else f"+{trial.arm}")
    run = RUNS / re.sub(r"[^\w.]+", "-", "-".join(map(str, trial.key)))
    effssl = [sys.executable, "-m", "effssl"]
    flags = [*BASES[trial.base], *trial.flags, "--readout.patches", "0", "--health.every", "1000"]
    flags += ["--health.bank", "45000", "--health.queries", "5000", "--seed", str(trial.seed), "--quiet"]
    command = [*effssl, "pretrain", "--data", "cifar10", "--objective", objective, "--recipe", RECIPE, *flags]
    subprocess.run([*command, "--precision", "float32", "--out", str(run), "--resume", "auto"], check=True)
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    row = {"key": trial.key, "validation_knn": last["knn"], "flops": last["flops"], "commit": commit()}
    for what in ("knn", "linear") if test else ():
        subprocess.run([*effssl, "eval", what, str(run)], check=True, stdout=subprocess.DEVNULL)
        row[what] = round(json.loads((run / "results.json").read_text())[what]["value"], 2)
    with ROWS.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(row, flush=True)
    return row


def stored_rows() -> list[dict[str, Any]]:
    """All measured rows."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def table(rows: list[dict[str, Any]], seeds: int) -> str:
    """Test accuracies by base and arm, and what an arm adds to the control, paired by seed with a 95 % interval."""
    lines = ["| base | arm | settings | compute | kNN | linear | linear − control |", "|---|---|---|---|---|---|---|"]
    tested: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if "linear" in row and row["key"][3] < seeds:
            tested.setdefault((row["key"][0], row["key"][1]), []).append(row)
    for (base, arm), some in sorted(tested.items(), key=lambda item: list(BASES).index(item[0][0])):
        flops = some[0]["flops"] / tested[base, "base"][0]["flops"]
        cells = [spread([row[key] for row in some]) for key in ("knn", "linear")]
        gain = paired(some, tested.get((base, "control"), [])) if arm in ("rotation", "words") else ""
        lines.append(f"| {base} | {arm} | {some[0]['key'][2]} | {flops:.2f}× | {' | '.join(cells)} | {gain} |")
    return "\n".join(lines)


def paired(some: list[dict[str, Any]], control: list[dict[str, Any]]) -> str:
    """Mean difference of linear accuracy over shared seeds, and its 95 % interval."""
    from scipy.stats import t

    of_control = {row["key"][3]: row["linear"] for row in control}
    gains = [row["linear"] - of_control[row["key"][3]] for row in some if row["key"][3] in of_control]
    if not gains:
        return ""
    if len(gains) < 2:
        return f"{gains[0]:+.1f} (one seed)"
    half = t.ppf(0.975, len(gains) - 1) * stdev(gains) / math.sqrt(len(gains))
    return f"{mean(gains):+.1f} ± {half:.1f}"


def spread(values: list[float]) -> str:
    """Mean ± standard deviation, or the value of one seed."""
    return f"{mean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


if __name__ == "__main__":
    main()
