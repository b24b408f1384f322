"""Run all benchmarks, print tables, write a JSON file.

python -m benchmarks [--out FILE] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path

import torch

from benchmarks import augmentation, neighbors, training
from effssl.memory import keep_freed_memory
from effssl.progress import table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--out", default="benchmarks/latest.json")
    parser.add_argument("--quick", action="store_true", help="fewer repeats; figures are rough")
    args = parser.parse_args()
    keep_freed_memory()  # as `effssl pretrain` does
    repeats = 3 if args.quick else 9
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "torch": torch.__version__}
    results = {
        "machine": machine,
        "augmentation": augmentation.measure(repeats),
        "training": training.measure(repeats),
        "neighbors": neighbors.measure(min(repeats, 3)),
    }
    rows = [(name, f"{r['views_per_second']:,.0f}", f"{r['ratio']:.1f}") for name, r in results["augmentation"].items()]
    table("augmentation, one core", ("pipeline", "views/s", "× torchvision v2 per image"), rows)
    rows = [
        (name, f"{r['images_per_second']:,.0f}", f"{r['limit']:,.0f}", f"{r['share']:.3f} ± {r['spread']:.3f}")
        for name, r in results["training"].items()
    ]
    table("training, all cores", ("run", "images/s", "on ready-made tensors", "share"), rows)
    extra = results["neighbors"].pop("extra")["gib"]
    rows = [(name, f"{r['seconds']:.1f}", f"{r['ratio']:.2f}") for name, r in results["neighbors"].items()]
    title = f"200 neighbors of 10,000 in 50,000×512; ours takes {extra:.2f} GiB beside its inputs"
    table(title, ("search", "seconds", "× ours"), rows)
    results["neighbors"]["extra_gib"] = extra
    Path(args.out).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
