"""End-to-end training against the same steps on ready-made tensors: what data, views and logging cost."""

from __future__ import annotations

from dataclasses import replace
from statistics import median, stdev

import torch

from benchmarks.augmentation import photo_tiles
from benchmarks.timing import interleaved
from effssl.data import ArrayImages, Data
from effssl.device import pick_device
from effssl.recipes import resolve
from effssl.training.loop import Trainer

CASES = {
    "small encoder, byol": ("byol", {"recipe": "cpu-byol"}, 16),
    "small encoder, byol+rotation": ("byol+rotation", {"recipe": "cpu-byol"}, 16),
    "ResNet-18, byol": ("byol", {"recipe": "cifar10-byol", "batch_size": 32}, 2),
}


def measure(repeats: int) -> dict[str, dict[str, float]]:
    """Share of the limit per case; a repeat is an epoch of a few steps."""
    return {name: _measure(objective, flags, steps, repeats) for name, (objective, flags, steps) in CASES.items()}


def _measure(objective: str, flags: dict, steps: int, repeats: int) -> dict[str, float]:
    plan = resolve({"data": "photos", "objective": objective, "image_size": 32, "epochs": 1000} | flags)
    batch = plan.config.batch_size
    tiles = photo_tiles(32)
    pixels = tiles.repeat(-(-steps * batch // len(tiles)), 1, 1, 1)[: steps * batch]
    trainer = Trainer(plan, Data("photos", ArrayImages(pixels)), pick_device("cpu"))
    ready = next(iter(trainer.loader.epoch(0)))

    def end_to_end() -> None:
        sums = torch.zeros(())
        for one in trainer.loader.epoch(0):
            loss, _ = trainer.step(one)
            sums = sums + loss
        float(sums)

    def limit() -> None:
        for step in range(steps):
            trainer.step(replace(ready, step=step))

    times = interleaved({"run": end_to_end, "limit": limit}, repeats)
    shares = [b / a for a, b in zip(times["run"], times["limit"], strict=True)]
    images = steps * batch
    return {
        "images_per_second": images / median(times["run"]),
        "limit": images / median(times["limit"]),
        "share": median(times["limit"]) / median(times["run"]),
        "spread": stdev(shares),
    }
