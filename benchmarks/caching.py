"""Views of JPEG files that every epoch decodes, and of those that the cache keeps: a ratio in one run.

python -m benchmarks.caching [--photos FOLDER] [--images 1000] [--side 64] [--workers 1] [--repeats 5]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch

from benchmarks.timing import interleaved, seconds
from benchmarks.training import images_of
from effssl.augment.options import Augment, ViewGroup
from effssl.data import Images, open_data
from effssl.data.cache import ImageCache
from effssl.data.loader import Batching, ViewLoader, ViewSpec
from effssl.runtime.progress import table

BATCH = 100


@contextmanager
def photographs(count: int, photos: str) -> Iterator[Images]:
    """So many JPEG files: of a folder, or parts of two photographs, 380×570 pixels each."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    if photos:
        with images_of("files", count, photos) as data:
            yield data.train
        return
    with tempfile.TemporaryDirectory() as folder:
        both = [Image.fromarray(image) for image in load_sample_images().images]  # 427×640
        for i in range(count):
            left, top = i % 70, i % 47
            both[i % 2].crop((left, top, left + 570, top + 380)).save(Path(folder, f"{i}.jpg"), quality=90)
        yield open_data(folder).train


def measure(images: Images, side: int, workers: int, repeats: int) -> dict[str, dict[str, float]]:
    """Images per second, two views each, of epochs that decode all files, fill the cache, and read it."""
    spec = ViewSpec(Augment(), {"large": ViewGroup(count=2)}, side)
    loaders = {
        name: ViewLoader(images, spec, Batching(BATCH, 0, workers=workers), torch.device("cpu"))
        for name in ("decoded every time", "from the cache")
    }
    epochs = dict.fromkeys(loaders, 0)

    def epoch(name: str) -> None:
        """The next epoch, whose crops are others."""
        for _ in loaders[name].epoch(epochs[name]):
            pass
        epochs[name] += 1

    with tempfile.TemporaryDirectory() as folder:
        loaders["from the cache"].use_cache(ImageCache(Path(folder)))
        filling = seconds(lambda: epoch("from the cache"))
        times = interleaved({name: lambda name=name: epoch(name) for name in loaders}, repeats)  # type: ignore[misc]
        size = sum(status.st_size for _, status in ImageCache(Path(folder)).entries())
    ratios = [a / b for a, b in zip(times["decoded every time"], times["from the cache"], strict=True)]
    count = loaders["from the cache"].steps * BATCH
    rows = {name: {"images_per_second": count / median(t)} for name, t in times.items()}
    rows["from the cache"] |= {"times_as_fast": median(ratios), "least": min(ratios), "most": max(ratios)}
    return rows | {"filling the cache": {"images_per_second": count / filling, "megabytes": size / 1e6}}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.caching")
    parser.add_argument("--photos", default="", help="folder of JPEG files; default: parts of two photographs")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--side", type=int, default=64, help="pixels of a view")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    with photographs(args.images, args.photos) as images:
        height, width = images.sizes.double().mean(0).tolist()
        rows = measure(images, args.side, args.workers, args.repeats)
    columns = ("images_per_second", "times_as_fast", "least", "most", "megabytes")
    table(
        f"two views of {args.side} pixels of {len(images):,} JPEG files, {height:.0f}×{width:.0f} on average",
        ("", *(column.replace("_", " ") for column in columns)),
        [(name, *(f"{row[c]:,.4g}" if c in row else "" for c in columns)) for name, row in rows.items()],
    )


if __name__ == "__main__":
    main()
