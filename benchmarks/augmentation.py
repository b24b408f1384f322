"""Views per second on one core: our batched pipeline against torchvision v2, lightly and kornia, at 32 and 128 pixels.

All make SimCLR's CIFAR views without blur: resized crop, flip, jitter (0.8), gray (0.2), normalized. Per-image
pipelines get what their users give them: PIL images (lightly), uint8 tensors (torchvision v2); kornia a float batch.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch
from sklearn.datasets import load_sample_images
from torchvision.transforms import v2
from torchvision.transforms.functional import to_pil_image

from benchmarks.timing import interleaved
from effssl.augment import pipeline as augment
from effssl.augment.crop import boxes
from effssl.augment.options import Augment
from effssl.runtime.randomness import generator

COUNT = {32: 512, 128: 128}
OURS = "effssl, batched"


def photo_tiles(size: int, count: int = 512) -> torch.Tensor:
    """Tiles of two real photographs, uint8."""
    tiles = []
    for image in load_sample_images().images:
        pixels = torch.from_numpy(image.copy()).permute(2, 0, 1)
        parts = pixels.unfold(1, size, 12).unfold(2, size, 12)
        tiles.append(parts.permute(1, 2, 0, 3, 4).reshape(-1, 3, size, size))
    return torch.cat(tiles)[:count].contiguous()


def ours(images: torch.Tensor, config: Augment, size: int) -> None:
    """As a loader does it: parameters and boxes of all steps at once, then step by step."""
    parts = images.split(128)
    drawn = augment.draw_parameters(config, 128, 1, [generator(0, "bench", step) for step in range(len(parts))])
    all_boxes = boxes(torch.tensor([[size, size]]).expand(len(images), 2), drawn.box[:, 0], config.ratio)
    for part, parameters, box in zip(parts, drawn.split(128), all_boxes.split(128), strict=True):
        augment.photometric(config, augment.crop_and_flip(part, box, parameters.flip, size), parameters)


def lightly_view(config: Augment, size: int) -> Callable:
    """lightly's SimCLR view with our strengths."""
    from lightly.transforms.simclr_transform import SimCLRViewTransform

    return SimCLRViewTransform(
        input_size=size, cj_prob=config.jitter, cj_strength=1.0, cj_bright=config.brightness,
        cj_contrast=config.contrast, cj_sat=config.saturation, cj_hue=config.hue, min_scale=config.scale[0],
        random_gray_scale=config.gray, gaussian_blur=0.0, hf_prob=config.flip,
        normalize={"mean": list(config.mean), "std": list(config.std)},
    )  # fmt: skip


def peers(images: torch.Tensor, config: Augment, size: int) -> dict[str, Callable[[], object]]:
    jitter = (config.brightness, config.contrast, config.saturation, config.hue)
    per_image = v2.Compose(
        [
            v2.RandomResizedCrop(size, config.scale, antialias=True),
            v2.RandomHorizontalFlip(config.flip),
            v2.RandomApply([v2.ColorJitter(*jitter)], config.jitter),
            v2.RandomGrayscale(config.gray),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(config.mean, config.std),
        ]
    )
    found: dict[str, Callable[[], object]] = {"torchvision v2, per image": lambda: [per_image(x) for x in images]}
    try:
        import lightly  # noqa: F401
    except ImportError:
        print("lightly is not installed (make bench installs it): it is left out")
    else:
        theirs = lightly_view(config, size)
        pictures = [to_pil_image(x) for x in images]
        found["lightly, per image"] = lambda: [theirs(picture) for picture in pictures]
    try:
        import kornia.augmentation as K
    except ImportError:
        print("kornia is not installed (make bench installs it): it is left out")
    else:
        batched = torch.nn.Sequential(
            K.RandomResizedCrop((size, size), config.scale, config.ratio),
            K.RandomHorizontalFlip(config.flip),
            K.ColorJitter(*jitter, p=config.jitter),
            K.RandomGrayscale(p=config.gray),
            K.Normalize(torch.tensor(config.mean), torch.tensor(config.std)),
        )
        found["kornia, batched"] = lambda: [batched(part.float() / 255) for part in images.split(128)]
    return found


def measure(repeats: int) -> dict[str, dict[str, float]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    results: dict[str, dict[str, float]] = {}
    try:
        for size, count in COUNT.items():
            images, config = photo_tiles(size, count), Augment()
            functions = {OURS: lambda i=images, s=size: ours(i, Augment(), s)} | peers(images, config, size)
            times = interleaved(functions, repeats)
            base = median(times[OURS])
            for name, each in times.items():
                rate = count / median(each)
                results[f"{name}, {size} px"] = {"views_per_second": rate, "ours_is_faster_by": median(each) / base}
    finally:
        torch.set_num_threads(threads)
    return results
