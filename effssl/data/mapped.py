"""A large .npy file of images: mapped, so that only the images that are needed are read, and memory stays small.

Its images are those of the same file read at once, but for what only a look at all of them would tell: whole numbers of
other types than uint8 and uint16 are taken for floats, whose range is that of a sample; so is whether an alpha channel
hides nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from effssl.augment.pixel_format import PICTURES, PixelFormat
from effssl.data.display import picture
from effssl.data.images import CropRequest, Crops, Reading, crop_from_pixels, hex_digest, read_ahead, select_labels
from effssl.data.layouts import check_size, format_of, stack_axis, stack_of

LARGE = 1 << 31  # bytes from which a file is mapped
PART = 1 << 24  # pixel values that are cropped at a time
SAMPLE = 100  # images, evenly spaced, by which a file is known


@dataclass(frozen=True)
class MappedImages:
    """Images of one size in a mapped array, read each time they are needed."""

    stack: np.ndarray  # the whole array, its images along the first axis
    axis: int | None  # of its channels
    rows: Tensor  # N int64: where each image is
    digest: str  # of the file
    labels: Tensor | None = None
    classes: list[str] = field(default_factory=list)
    pixel_format: PixelFormat = PICTURES
    paths = None
    in_memory = True
    from_files = False

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> Tensor:
        """Height and width of every image, N×2."""
        sides = [n for i, n in enumerate(self.stack.shape) if i not in (0, self.axis)]
        return torch.tensor(sides).expand(len(self), 2)

    def select(self, rows: Tensor) -> MappedImages:
        """The same set with only these rows."""
        return replace(self, rows=self.rows[rows], labels=select_labels(self.labels, rows))

    def fingerprint(self) -> str:
        """A short digest of a sample of the images and of which of them these are: reading all would take long."""
        digest = hashlib.blake2b(self.digest.encode(), digest_size=8)
        digest.update(self.rows.contiguous().numpy().data)
        return hex_digest(digest, self.labels)

    def read(self, rows: Tensor) -> Tensor:
        """Images N×C×H×W."""
        # Not by torch: this runs in a thread, where torch's own threads would stay and compete with those of training.
        found, of = self.stack[self.rows[rows].numpy()], self.pixel_format
        pixels = found[:, None] if self.axis is None else np.moveaxis(found, self.axis, 1)
        with np.errstate(over="ignore"):  # what float32 does not hold is infinite
            pixels = pixels[:, : of.channels].astype(of.depth, copy=False)
        return torch.from_numpy(np.repeat(pixels, of.channels // pixels.shape[1], 1))

    def array(self, row: int) -> np.ndarray:
        """The pixels of one image, H×W×C."""
        return self.read(torch.tensor([row]))[0].permute(1, 2, 0).numpy()

    def image(self, row: int) -> Image.Image:
        """One whole image."""
        return picture(self.array(row), self.pixel_format)

    def crops(self, requests: Iterable[CropRequest], reading: Reading) -> Iterator[Crops]:
        """The crops of each request, in order; a thread reads one batch ahead."""
        together = max(1, PART // int(self.pixel_format.channels * self.sizes[0].prod()))

        def read(request: CropRequest) -> list[Tensor]:
            return [self.read(part) for part in request.rows.split(together)]

        return crop_from_pixels(read_ahead(read, requests), self.pixel_format, reading)


def map_images(stack: np.ndarray, path: Path) -> MappedImages:
    """The images of a mapped array, which is that of a file."""
    axis = stack_axis(stack.shape, str(path))
    sample = stack[np.linspace(0, len(stack) - 1, min(SAMPLE, len(stack))).astype(np.int64)]
    known = stack_of(sample if sample.dtype.name in ("uint8", "uint16") else sample.astype(np.float32), str(path))
    check_size(len(stack), known.shape[-2:], str(path))
    about = hashlib.blake2b(f"{stack.shape} {stack.dtype}".encode(), digest_size=16)
    about.update(np.ascontiguousarray(sample).data)
    rows = torch.arange(len(stack))
    return MappedImages(stack, axis, rows, about.hexdigest(), pixel_format=format_of(known, 1, str(path)))
