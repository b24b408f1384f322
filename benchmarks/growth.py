"""Seconds and memory against images, image size, batch and threads: one epoch in a process of its own each.

python -m benchmarks.growth [--only batch] [--out docs/growth.json] [--plot docs/growth.png]
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
from typing import Any

from effssl.runtime.progress import say, table

SIDE = 80  # of the tiles in folders and packs: smaller ones would be kept in memory
COUNTS = (5_000, 10_000, 20_000, 50_000)
BASE = {"images": 2_560, "size": 32, "batch": 128, "threads": 2, "processes": 1, "kind": "memory"}
SIZES, BATCHES = ((32, 2560), (64, 1280), (128, 512), (224, 256)), (32, 64, 128, 256, 512, 1024)
WORKERS = ((1, 1), (2, 1), (1, 2))  # threads, processes


def cases() -> dict[str, list[dict[str, Any]]]:
    return {
        "images in memory": [BASE | {"images": n} for n in COUNTS],
        "images in a pack": [BASE | {"images": n, "kind": "pack"} for n in COUNTS],
        "images in a folder": [BASE | {"images": n, "kind": "files"} for n in COUNTS],
        "image size": [BASE | {"images": n, "size": size, "batch": 32} for size, n in SIZES],
        "batch": [BASE | {"images": 5_120, "batch": batch} for batch in BATCHES],
        "threads and processes": [BASE | {"threads": t, "processes": p} for t, p in WORKERS],
    }


# ---------------------------------------------------------------------------------------------------------------
# One epoch, in a process of its own


def anonymous_memory() -> int:
    """Bytes of this process that are its own: pages of a mapped file belong to the system's cache."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def one(case: dict[str, Any], root: Path) -> None:
    import torch

    from benchmarks.augmentation import photo_tiles
    from effssl.data import ArrayImages, Data, open_data
    from effssl.recipes import resolve
    from effssl.runtime.device import pick_device
    from effssl.runtime.distribution import barrier, process_group, rank
    from effssl.runtime.memory import keep_freed_memory
    from effssl.training.trainer import Trainer

    torch.set_num_threads(case["threads"])
    keep_freed_memory()
    with process_group():
        flags = {"data": "photos", "objective": "byol+rotation", "recipe": "cpu-byol-efficient", "epochs": 1000}
        plan = resolve(flags | {"image_size": case["size"], "batch_size": case["batch"], "encoder": "small"})
        if case["kind"] == "memory":
            tiles = photo_tiles(case["size"])
            data = Data(
                "photos", ArrayImages(tiles.repeat(-(-case["images"] // len(tiles)), 1, 1, 1)[: case["images"]])
            )
        else:
            data = open_data(str(root))
        trainer = Trainer(plan, data, pick_device("cpu"))
        for i, views in enumerate(trainer.loader.epoch(0)):  # warm-up
            trainer.step(views)
            if i == 2:
                break
        barrier()
        started, most = time.perf_counter(), 0
        for i, views in enumerate(trainer.loader.epoch(1)):
            trainer.step(views)
            if i % 10 == 0:
                most = max(most, anonymous_memory())
        barrier()
        found = {"seconds": time.perf_counter() - started, "mib": most / 2**20, "seen": (i + 1) * case["batch"]}
        if rank() == 0:
            print(json.dumps(found))


def run(case: dict[str, Any], root: Path) -> dict[str, Any]:
    many = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case["processes"])]
    launch = [sys.executable, *(many if case["processes"] > 1 else []), "-m", "benchmarks.growth"]
    env = os.environ | {"OMP_NUM_THREADS": str(case["threads"])}
    done = subprocess.run(
        [*launch, "--one", json.dumps(case), "--root", str(root)],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return case | json.loads(done.stdout.splitlines()[-1])


# ---------------------------------------------------------------------------------------------------------------
# All of them


def make_folder(root: Path, count: int) -> None:
    """So many JPEG files, tiles of two photographs; those that are there stay."""
    from torchvision.transforms.functional import to_pil_image

    from benchmarks.augmentation import photo_tiles

    root.mkdir(parents=True, exist_ok=True)
    tiles = photo_tiles(SIDE)
    for i in range(len(list(root.iterdir())), count):
        to_pil_image(tiles[i % len(tiles)]).save(root / f"{i:06}.jpg")


def measure(only: str = "") -> dict[str, list[dict[str, Any]]]:
    from effssl.data.packing import pack

    results: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "files")
        for name, some in cases().items():
            if only and only not in name:
                continue
            results[name] = []
            for case in some:
                root = files
                if case["kind"] != "memory":
                    root = Path(folder, f"files{case['images']}")
                    make_folder(root, case["images"])
                    if case["kind"] == "pack":
                        root = pack(root)
                results[name].append(run(case, root))
                last = results[name][-1]
                say(f"{name}: {case} → {last['seconds']:.1f} s, {last['mib']:.0f} MiB")
    return results


def show(results: dict[str, list[dict[str, Any]]]) -> None:
    rows = []
    for name, some in results.items():
        for r in some:
            what = {
                "image size": f"{r['size']} px", "batch": str(r["batch"]),
                "threads and processes": f"{r['threads']} × {r['processes']}",
            }.get(name, f"{r['images']:,}")  # fmt: skip
            rows.append((name, what, f"{r['seconds']:.1f}", f"{r['seen'] / r['seconds']:,.0f}", f"{r['mib']:,.0f}"))
    table("one epoch of byol+rotation, small encoder", ("against", "", "seconds", "images/s", "MiB"), rows)


def draw(results: dict[str, list[dict[str, Any]]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for name, style in (("memory", "k-o"), ("pack", "C0-s"), ("folder", "C1-^")):
        some = next((v for k, v in results.items() if k.startswith("images") and k.endswith(name)), [])
        x = [r["images"] for r in some]
        axes[0].plot(x, [r["seconds"] for r in some], style, label=name)
        axes[1].plot(x, [r["mib"] for r in some], style, label=name)
    axes[0].set(xlabel="images", ylabel="seconds per epoch", ylim=0)
    axes[1].set(xlabel="images", ylabel="memory, MiB", ylim=0)
    some = results.get("batch", [])
    axes[2].plot([r["batch"] for r in some], [r["seen"] / r["seconds"] for r in some], "k-o")
    axes[2].set(xlabel="batch", ylabel="images/s", xscale="log", ylim=0)
    axes[0].legend(frameon=False)
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth")
    parser.add_argument("--out", default="docs/growth.json")
    parser.add_argument("--plot", default="")
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    parser.add_argument("--root", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one(json.loads(args.one), Path(args.root))
        return
    out = Path(args.out)
    kept = json.loads(out.read_text()) if args.only and out.exists() else {}  # what is not measured anew stays
    results = kept | measure(args.only)
    show(results)
    out.write_text(json.dumps(results, indent=1) + "\n")
    if args.plot:
        draw(results, args.plot)


if __name__ == "__main__":
    main()
