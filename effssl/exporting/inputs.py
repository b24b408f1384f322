"""What exported files take: images of any size as uint8, or images that were resized before; as words and as code."""

from __future__ import annotations

import torch
from torch import Tensor

from effssl.data.decoding import least_side
from effssl.network.loaded import LoadedEncoder

ANY_SIZE = "uint8 images N×H×W×3 of any size, RGB; it crops, resizes and normalizes them"
REFERENCE_SIZE = (41, 67)  # of the reference image, height and width


def sizes_of_examples(size: int) -> list[tuple[int, int, int]]:
    """Number, height and width of the images with which a program for any size is checked; none is the encoder's."""
    return [(1, 2 * size + 3, size + 5), (3, size // 2 + 3, size + 1), (1, 3 * size + 1, 4 * size + 2)]


def random_images(count: int, height: int, width: int) -> Tensor:
    """Gray levels of images N×H×W×3, uint8."""
    g = torch.Generator().manual_seed(count)
    return torch.randint(256, (count, height, width, 3), generator=g, dtype=torch.uint8)


def resized_images(loaded: LoadedEncoder, count: int) -> Tensor:
    """Images N×C×S×S in [0, 1]."""
    shape = (count, loaded.pixels.channels, loaded.size, loaded.size)
    return torch.rand(shape, generator=torch.Generator().manual_seed(count))


def channels_first(images: Tensor) -> Tensor:
    """N×H×W×3 → N×3×H×W, as encoders take them."""
    return images.permute(0, 3, 1, 2)


def reference_image() -> Tensor:
    """An image that one line of NumPy makes, 1×H×W×3 uint8."""
    height, width = REFERENCE_SIZE
    return (torch.arange(3 * height * width) * 7 % 256).to(torch.uint8).view(1, height, width, 3)


def reference_image_code() -> str:
    """The line of NumPy."""
    height, width = REFERENCE_SIZE
    numbers = f"(numpy.arange({3 * height * width}) * 7 % 256)"
    return f"images = {numbers}.astype(numpy.uint8).reshape(1, {height}, {width}, 3)"


def resized_shape(loaded: LoadedEncoder) -> str:
    """The shape of resized images, in words."""
    return f"N×{loaded.pixels.channels}×{loaded.size}×{loaded.size}"


def open_code(loaded: LoadedEncoder) -> list[str]:
    """Code that opens a photograph as `image`, in RGB; none for other pixels than those of pictures."""
    if not loaded.pixels.is_picture:
        return []
    least = least_side(loaded.size, loaded.share)
    return [
        "from PIL import Image, ImageOps",
        'image = Image.open("photo.jpg")',
        f'image.draft("RGB", ({least}, {least}))  # decodes a large JPEG at a fraction of its size, as effssl does',
        'image = ImageOps.exif_transpose(image).convert("RGB")',
    ]


def resized_code(loaded: LoadedEncoder) -> list[str]:
    """Code from `image`, or from an array of other pixels, to `images`, N×C×S×S in [0, 1]."""
    if loaded.pixels.is_picture:
        pixels = "images = numpy.asarray(image, numpy.float32).transpose(2, 0, 1)[None] / 255"
        return ["import numpy", *_resize_code(loaded), pixels]
    low, high = loaded.pixels.range
    shape = f"(1, {loaded.pixels.channels}, {loaded.size}, {loaded.size})"
    return [
        "import numpy",
        f"images = numpy.zeros({shape}, numpy.float32)  # your images, cropped and resized",
        f"images = (images - {low:g}) / {high - low:g}",
    ]


def _resize_code(loaded: LoadedEncoder) -> list[str]:
    """Code that crops and resizes `image` as effssl does."""
    size, share = loaded.size, "" if loaded.share == 1 else f" * {loaded.share!r}"
    return [
        f"side = round(min(image.size){share})",
        "left, top = (round((length - side) / 2) for length in image.size)",
        "image = image.crop((left, top, left + side, top + side))",
        f"image = image.resize(({size}, {size}), Image.Resampling.{loaded.filter.upper()})",
    ]
