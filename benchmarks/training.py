"""End-to-end training against the same steps on ready-made tensors: what data, views and logging cost."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median, stdev

from torchvision.transforms.functional import to_pil_image

from benchmarks.augmentation import photo_tiles
from benchmarks.precision import fastest, precisions
from benchmarks.timing import interleaved
from effssl.data import ArrayImages, Data, open_data
from effssl.data.packing import pack
from effssl.recipes import resolve
from effssl.runtime.device import pick_device
from effssl.training.trainer import Trainer

SMALL = {"image_size": 32}
BATCH = {"batch_size": 128, "lr": 0.2}
LARGE = {"encoder": "resnet18", "image_size": 128, "stem": "large", "batch_size": 32, "lr": 0.1}
CASES = {
    # Parameters are drawn for many steps at once, so epochs of a few would have more of that than real ones.
    "small encoder, byol, in memory": ("byol", {"recipe": "cpu-byol"} | BATCH | SMALL, 16, "memory"),
    "small encoder, byol+rotation, in memory": (
        "byol+rotation",
        {"recipe": "cpu-byol-efficient"} | BATCH | SMALL,
        16,
        "memory",
    ),
    # Its steps are long: one of each in turn, so that the machine's moods hit both alike.
    "ResNet-18 at 32 px, byol, in memory": ("byol", {"recipe": "cifar10-byol", "batch_size": 32} | SMALL, 1, "memory"),
    "ResNet-18 at 128 px, byol, packed": ("byol", {"recipe": "images-byol"} | LARGE, 2, "pack"),
    # Every epoch begins with files that are not decoded yet, so this one is longer.
    "ResNet-18 at 128 px, byol, JPEG files": ("byol", {"recipe": "images-byol"} | LARGE, 12, "files"),
}


def measure(repeats: int, photos: str = "") -> dict[str, dict[str, float]]:
    """Share of the limit per case, the median of its repeats; a repeat is an epoch of a few steps.

    Photographs are measured in the fastest precision alone, small images in each.
    """

    def often(name: str) -> int:
        return max(2, repeats // 3) if name.endswith("files") else repeats if "128 px" in name else repeats + 3

    rows = {}
    for name, (objective, flags, steps, kind) in CASES.items():
        for precision in precisions() if kind == "memory" else [fastest()]:
            case = objective, flags | {"precision": precision}, steps, kind
            rows[f"{name}, {precision}"] = _measure(*case, often(name), photos)
    return rows


@contextmanager
def images_of(kind: str, count: int, photos: str) -> Iterator[Data]:
    """So many images in memory, in a pack or as JPEG files; of a folder, or tiles of two photographs."""
    if kind == "memory":
        tiles = photo_tiles(32)
        pixels = tiles.repeat(-(-count // len(tiles)), 1, 1, 1)[:count]
        yield Data("photos", ArrayImages(pixels))
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "photos")
        root.mkdir()
        if photos:
            for i, path in enumerate(sorted(Path(photos).rglob("*.[jJ][pP]*"))[:count]):
                (root / f"{i}{path.suffix}").symlink_to(path.resolve())
        else:
            tiles = photo_tiles(128)
            for i in range(count):
                to_pil_image(tiles[i % len(tiles)]).save(root / f"{i}.jpg")
        yield open_data(str(pack(root) if kind == "pack" else root))


def _measure(objective: str, flags: dict, steps: int, kind: str, repeats: int, photos: str) -> dict[str, float]:
    plan = resolve({"data": "photos", "objective": objective, "epochs": 1000} | flags)
    batch = plan.config.batch_size
    with images_of(kind, steps * batch, photos) as data, ExitStack() as stack:
        trainer = Trainer(plan, data, pick_device("cpu"))
        stack.enter_context(trainer.loader.kept_workers())  # as in a run
        ready = next(iter(trainer.loader.epoch(0)))

        def end_to_end() -> None:
            for views in trainer.loader.epoch(0):
                trainer.train_step(views)
            json.dumps(trainer.end_epoch())

        def limit() -> None:
            for step in range(steps):
                trainer.step(replace(ready, step=step))

        times = interleaved({"run": end_to_end, "limit": limit}, repeats)
    shares = [b / a for a, b in zip(times["run"], times["limit"], strict=True)]
    images = steps * batch
    return {
        "images_per_second": images / median(times["run"]),
        "limit": images / median(times["limit"]),
        "share": median(shares),
        "spread": stdev(shares),
    }
