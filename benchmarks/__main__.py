"""Run all benchmarks, print tables, write a JSON file, and say what got worse than the committed baseline.

python -m benchmarks [--quick] [--only NAME] [--photos FOLDER] [--out FILE] [--baseline FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import access, arithmetic, augmentation, neighbors, peers, start, training
from benchmarks.compare import worse
from effssl.runtime.memory import keep_freed_memory
from effssl.runtime.progress import table

TITLES = {
    "augmentation": "views per second on one core",
    "training": "training, all cores, against the same steps on ready-made tensors",
    "arithmetic": "a step's GFLOPS against those of a large matrix product",
    "peers": "training, all cores, images per second: effssl in its fastest precision, lightly in float32",
    "access": "random access to images of 128 px",
    "neighbors": "200 neighbors of 10,000 in 50,000×512",
    "start": "seconds until something happens",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--out", default="benchmarks/latest.json")
    parser.add_argument("--baseline", default="benchmarks/baseline.json")
    parser.add_argument("--photos", default="", help="folder of JPEG files; default: tiles of two photographs")
    parser.add_argument("--only", default="", help=f"comma-separated: {', '.join(TITLES)}")
    parser.add_argument("--quick", action="store_true", help="fewer repeats; figures are rough")
    args = parser.parse_args()
    keep_freed_memory()  # as `effssl pretrain` does
    n = 3 if args.quick else 9
    measures: dict[str, Callable[[], dict[str, dict[str, float]]]] = {
        "augmentation": lambda: augmentation.measure(n),
        "training": lambda: training.measure(n, args.photos),
        "arithmetic": lambda: arithmetic.measure(n),
        "peers": lambda: peers.measure(min(n, 3), args.photos),
        "access": lambda: access.measure(n, args.photos),
        "neighbors": lambda: neighbors.measure(min(n, 3)),
        "start": lambda: start.measure(min(n, 3)),
    }
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "torch": torch.__version__}
    results: dict = {"machine": machine}
    for name, measure in measures.items():
        if args.only and name not in args.only.split(","):
            continue
        started = time.monotonic()
        found = results[name] = measure()
        if found:
            columns = list(dict.fromkeys(key for row in found.values() for key in row))
            rows = [
                (what, *(f"{row[key]:,.4g}" if key in row else "" for key in columns)) for what, row in found.items()
            ]
            table(TITLES[name], ("", *(column.replace("_", " ") for column in columns)), rows)
            print(f"{time.monotonic() - started:.0f} s")
    Path(args.out).write_text(json.dumps(results, indent=2) + "\n")
    if Path(args.baseline).exists():
        for line in worse(json.loads(Path(args.baseline).read_text()), results) or [
            "nothing got worse by more than 10 %"
        ]:
            print(line)


if __name__ == "__main__":
    main()
