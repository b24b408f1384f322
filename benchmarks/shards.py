"""A million small images in WebDataset shards: seconds to open them, images per second, and memory all the way.

python -m benchmarks.shards [--images 1000000] [--read 1000000] [--folder FOLDER] [--workers 1]
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import tarfile
import tempfile
import time
from pathlib import Path

from benchmarks.growth import anonymous_memory
from effssl.runtime.progress import say, table

SIDE = 80  # of the tiles; images of one size up to 64 pixels would be kept in memory
PER_SHARD = 10_000
BATCH = 500
SAMPLES = 10  # how often memory is read


def write_shards(folder: Path, count: int) -> str:
    """Shards of so many JPEG files with a class each; those that are there stay."""
    from torchvision.transforms.functional import to_pil_image

    from benchmarks.augmentation import photo_tiles

    encoded = []
    for tile in photo_tiles(SIDE):
        content = io.BytesIO()
        to_pil_image(tile).save(content, "JPEG")
        encoded.append(content.getvalue())
    shards = count // PER_SHARD
    for shard in range(shards):
        path = folder / f"train-{shard:05}.tar"
        if path.exists():
            continue
        with tarfile.open(path.with_suffix(".part"), "w") as tar:
            for i in range(shard * PER_SHARD, (shard + 1) * PER_SHARD):
                for suffix, content in (("jpg", encoded[i % len(encoded)]), ("cls", b"%d" % (i % 10))):
                    member = tarfile.TarInfo(f"{i:08}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        os.replace(path.with_suffix(".part"), path)
    return str(folder / f"train-{{00000..{shards - 1:05}}}.tar")


def all_memory() -> int:
    """Bytes that belong to this process or its workers alone; what they share counts once, as a share of each."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    total = 0
    for process in (str(os.getpid()), *children):
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        total += int(next(line for line in lines if line.startswith("Pss_Anon")).split()[1]) * 1024
    return total


def measure(spec: str, count: int, workers: int) -> list[tuple[str, str, str]]:
    """Open the shards twice and read so many images in random order, whole at 64 pixels: what, how fast, MiB."""
    import torch

    from effssl.data import open_data
    from effssl.data.images import Reading, crop_batches, whole_boxes

    torch.set_num_threads(1)
    rows = [("Python and torch", "", f"{anonymous_memory() / 2**20:,.0f}")]
    for what in ("open, scanning all shards", "open, from the kept index"):
        started = time.perf_counter()
        data = open_data(spec)
        seconds = time.perf_counter() - started
        rows.append((what, f"{seconds:,.1f} s", f"{anonymous_memory() / 2**20:,.0f}"))
        say("   ".join(rows[-1]))
    images = data.train.select(torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))[:count])
    batches = crop_batches(images, whole_boxes(images.sizes), 64, BATCH, Reading(workers=workers))
    started, seen = time.perf_counter(), 0
    for number, (pixels, _) in enumerate(batches, 1):
        seen += len(pixels)
        if number % max(1, count // BATCH // SAMPLES) == 0:
            rate, memory = seen / (time.perf_counter() - started), all_memory() / 2**20
            rows.append((f"after {seen:,} images", f"{rate:,.0f} images/s", f"{memory:,.0f}"))
            say("   ".join(rows[-1]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    rows.append(("largest, with the pages of files", "", f"{peak:,.0f}"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shards")
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--folder", default="", help="where the shards are, or are to be written; default: a new one")
    parser.add_argument("--read", type=int, default=0, help="how many of them are read; default: all")
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["EFFSSL_DATA"] = temporary  # where the index is kept
        rows = measure(write_shards(folder, args.images), args.read or args.images, args.workers)
    table(f"{args.images:,} images of {SIDE} pixels in shards", ("", "", "MiB"), rows)


if __name__ == "__main__":
    main()
