"""Random access to images of 128 pixels: a pack against JPEG files, whole images per second on one core."""

from __future__ import annotations

from statistics import median

import torch
from torchvision.transforms.functional import pil_to_tensor

from benchmarks.timing import interleaved
from benchmarks.training import images_of
from effssl.data import FolderImages, PackedImages
from effssl.data.image_files import decode

COUNT = 1000


def measure(repeats: int, photos: str = "") -> dict[str, dict[str, float]]:
    rows = torch.randperm(COUNT, generator=torch.Generator().manual_seed(0))
    with images_of("files", COUNT, photos) as files, images_of("pack", COUNT, photos) as packed:
        assert isinstance(files.train, FolderImages)
        assert isinstance(packed.train, PackedImages)
        paths, images = files.train.paths, packed.train

        def decoded() -> None:
            for row in rows.tolist():
                pil_to_tensor(decode(paths[row]))

        def read() -> None:
            for part in rows.split(128):
                images.read(part)

        times = interleaved({"pack": read, "JPEG files": decoded}, repeats)
    base = median(times["pack"])
    return {name: {"images_per_second": COUNT / median(t), "slower_by": median(t) / base} for name, t in times.items()}
