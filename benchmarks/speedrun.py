"""The speed-run: time from command to encoder against test accuracy on CIFAR-10, all 50,000 images without labels.

python -m benchmarks.speedrun --entry effssl --budget 1m --seeds 5   train and evaluate; measured rows are not repeated
python -m benchmarks.speedrun --table                                the page's table from the stored rows

A row is one command in a process of its own, on an otherwise idle machine: its wall time includes imports, filters,
evaluations and the report. Test images are read once per row. Rows are appended to benchmarks/speedrun.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from effssl.runtime.processor import processor_name
from effssl.runtime.versions import EFFSSL

ROWS = Path(__file__).with_name("speedrun.jsonl")
ENTRIES = {
    "effssl": ["--budget", "{budget}"],
    "simclr+rotation, tiny": ["--budget", "{budget}", "--objective", "simclr+rotation", "--encoder", "tiny"],
    "simclr, tiny": ["--budget", "{budget}", "--objective", "simclr", "--encoder", "tiny"],
    "k-means patches": ["--encoder", "patches"],
}
"""Flags of `effssl pretrain` by entry. Entries of other software are run by their own scripts: `--entry lightly`."""
SIGNIFICANT = 0.05  # of Welch's one-sided t-test between a new record and the one before
SEEDS = 5  # that a record needs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speedrun")
    parser.add_argument("--entry", default="effssl", choices=[*ENTRIES, "lightly"])
    parser.add_argument("--budget", default="1m")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if not args.table:
        for seed in range(args.seeds):
            wanted = {"entry": args.entry, "budget": args.budget, "seed": seed, "machine": machine()}
            if not any(wanted.items() <= row.items() for row in stored_rows()):
                row = run_entry(args.entry, args.budget, seed)
                with ROWS.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(row)
    print(table(stored_rows()))


def run_entry(entry: str, budget: str, seed: int) -> dict[str, Any]:
    """Train by one command, evaluate on the test images."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if entry == "lightly":
            command = [sys.executable, "-m", "benchmarks.speedrun_lightly", budget, str(seed), str(out)]
        else:
            flags = [flag.format(budget=budget) for flag in ENTRIES[entry]]
            command = [sys.executable, "-m", "effssl", "pretrain", "--data", "cifar10", *flags]
            command += ["--seed", str(seed), "--out", str(out), "--quiet"]
        started = time.monotonic()
        subprocess.run(command, check=True)
        seconds = time.monotonic() - started
        scores = {what: evaluate(what, out, seed) for what in ("linear", "knn")}
    return {
        "entry": entry, "budget": budget, "seed": seed, "seconds": round(seconds, 1), **scores,
        "machine": machine(), "effssl": EFFSSL, "commit": commit(),
    }  # fmt: skip


def evaluate(what: str, run: Path, seed: int) -> float:
    """Test accuracy in percent, by the package's own protocol."""
    file = run.with_name(f"{what}.json")
    source = run if run.is_dir() else run.with_suffix(".safetensors")
    command = [sys.executable, "-m", "effssl", "eval", what, str(source), "--out", str(file)]
    command += [] if run.is_dir() else ["--data", "cifar10"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return round(json.loads(file.read_text())["value"], 2)


def stored_rows() -> list[dict[str, Any]]:
    """All measured rows."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def machine() -> str:
    """What a row was measured on."""
    return f"{os.cpu_count()} cores, {processor_name()}"


def table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table of means ± standard deviations over seeds, by entry and budget."""
    lines = ["| entry | command's time | linear | kNN | n | machine | commit |", "|---|---|---|---|---|---|---|"]
    kinds = ("entry", "budget", "commit", "machine")
    for kind in dict.fromkeys(tuple(row[key] for key in kinds) for row in rows):
        some = [row for row in rows if tuple(row[key] for key in kinds) == kind]
        cells = [_spread([row[key] for row in some]) for key in ("seconds", "linear", "knn")]
        last = some[-1]
        cells[0] += " s"
        lines.append(f"| {last['entry']} | {' | '.join(cells)} | {len(some)} | {last['machine']} | {last['commit']} |")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return f"{mean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def is_record(new: list[float], old: list[float]) -> bool:
    """Whether new accuracies beat old ones: at least SEEDS seeds each, and a significant one-sided Welch's t-test."""
    from scipy.stats import ttest_ind

    if min(len(new), len(old)) < SEEDS:
        return False
    return bool(ttest_ind(new, old, equal_var=False, alternative="greater").pvalue < SIGNIFICANT)


def commit() -> str:
    """The commit that is measured, short; with a plus if files differ from it."""
    here = Path(__file__).parent
    found = subprocess.run(["git", "describe", "--always", "--dirty=+"], cwd=here, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
