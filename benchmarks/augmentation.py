"""Views per second on one core: our batched pipeline against torchvision v2 image by image."""

from __future__ import annotations

from statistics import median

import torch
from sklearn.datasets import load_sample_images
from torchvision.transforms import v2

from benchmarks.timing import interleaved
from effssl import augment
from effssl.augment.crop import boxes
from effssl.config import Augment
from effssl.randomness import generator

COUNT = 512


def photo_tiles(size: int) -> torch.Tensor:
    tiles = []
    for image in load_sample_images().images:
        pixels = torch.from_numpy(image.copy()).permute(2, 0, 1)
        parts = pixels.unfold(1, size, 12).unfold(2, size, 12)
        tiles.append(parts.permute(1, 2, 0, 3, 4).reshape(-1, 3, size, size))
    return torch.cat(tiles)[:COUNT].contiguous()


def measure(repeats: int) -> dict[str, dict[str, float]]:
    """The CIFAR pipeline (crop, flip, jitter, gray, normalize) at 32 pixels."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        images, config = photo_tiles(32), Augment()
        theirs = v2.Compose(
            [
                v2.RandomResizedCrop(32, (0.2, 1.0), antialias=True),
                v2.RandomHorizontalFlip(),
                v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
                v2.RandomGrayscale(0.2),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(config.mean, config.std),
            ]
        )

        def ours() -> None:
            for step, part in enumerate(images.split(128)):
                draws = augment.draw(config, len(part), 0, generator(0, "bench", step))
                box = boxes(torch.tensor([[32, 32]]).expand(len(part), 2), draws.box[:, 0], config.ratio)
                augment.recolor(config, augment.cut(config, part, box, draws, 32), draws)

        def per_image() -> None:
            for image in images:
                theirs(image)

        times = interleaved({"effssl, batched": ours, "torchvision v2, per image": per_image}, repeats)
    finally:
        torch.set_num_threads(threads)
    base = median(times["torchvision v2, per image"])
    return {name: {"views_per_second": COUNT / median(t), "ratio": base / median(t)} for name, t in times.items()}
