"""Three kinds of image sets: small images as one tensor, large ones as files, or decoded in a memory-mapped pack."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from effssl.runtime.errors import RequestError
from effssl.runtime.randomness import generator


@dataclass(frozen=True)
class ArrayImages:
    """Images of one size, in memory."""

    pixels: Tensor  # N×3×H×W uint8
    labels: Tensor | None = None  # N int64
    classes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def sizes(self) -> Tensor:
        """Height and width of every image, N×2."""
        return torch.tensor(self.pixels.shape[-2:]).expand(len(self), 2)

    def select(self, index: Tensor) -> ArrayImages:
        """The same set with only these rows."""
        return replace(self, pixels=self.pixels[index], labels=_rows(self.labels, index))

    def fingerprint(self) -> str:
        """A short digest that changes when an image or a label does."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update(self.pixels.contiguous().numpy().data)
        return _with_labels(digest, self.labels)


@dataclass(frozen=True)
class FolderImages:
    """Image files of any size; decoded where they are needed."""

    paths: list[Path]
    sizes: Tensor  # N×2 int64: height, width as displayed (EXIF orientation applied)
    labels: Tensor | None = None
    classes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.paths)

    def select(self, index: Tensor) -> FolderImages:
        """The same set with only these rows."""
        paths = [self.paths[i] for i in index.tolist()]
        return replace(self, paths=paths, sizes=self.sizes[index], labels=_rows(self.labels, index))

    def fingerprint(self) -> str:
        """A short digest of the files' names, sizes and labels (not of their pixels, which would mean reading all)."""
        digest = hashlib.blake2b(digest_size=8)
        for path, size in zip(self.paths, self.sizes.tolist(), strict=True):
            digest.update(f"{path.parent.name}/{path.name} {size}\n".encode("utf-8", "surrogateescape"))
        return _with_labels(digest, self.labels)


@dataclass(frozen=True)
class PackedImages:
    """Images of any size that `effssl pack` decoded: rows of a memory-mapped file, read where they are needed."""

    pixels: np.ndarray  # the whole file, uint8; an image lies there as height×3×width
    offsets: Tensor  # N int64: where each image begins
    sizes: Tensor  # N×2 int64: height, width
    digest: str  # of what the pack holds
    paths: list[Path]  # as they were, below the folder that was packed
    labels: Tensor | None = None
    classes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.offsets)

    def select(self, index: Tensor) -> PackedImages:
        """The same set with only these rows."""
        paths = [self.paths[i] for i in index.tolist()]
        return replace(
            self, offsets=self.offsets[index], sizes=self.sizes[index], paths=paths, labels=_rows(self.labels, index)
        )

    def fingerprint(self) -> str:
        """A short digest that changes when an image or a label does."""
        digest = hashlib.blake2b(self.digest.encode(), digest_size=8)
        digest.update(self.offsets.contiguous().numpy().data)
        return _with_labels(digest, self.labels)

    def read(self, rows: Tensor) -> Tensor:
        """These images N×3×H×W, uint8, in the top left corner of the largest height and width among them."""
        sizes = self.sizes[rows]
        height, width = sizes.amax(0).tolist()
        # Not by torch: this runs in a thread, where torch's own threads would stay and compete with those of training.
        out = np.zeros((len(rows), height, 3, width), np.uint8)
        places = zip(out, self.offsets[rows].tolist(), sizes.tolist(), strict=True)
        for place, start, (h, w) in places:
            place[:h, :, :w] = self.pixels[start : start + 3 * h * w].reshape(h, 3, w)
        return torch.from_numpy(out).transpose(1, 2)


Images = ArrayImages | FolderImages | PackedImages


def is_pack(folder: Path) -> bool:
    """Whether a folder is one that `effssl pack` made or began."""
    files = [folder / name for name in ("pack.json", "plan.json")]
    return any(file.is_file() and b"effssl pack" in file.read_bytes()[:200] for file in files)


def _rows(labels: Tensor | None, index: Tensor) -> Tensor | None:
    return None if labels is None else labels[index]


def _with_labels(digest: hashlib.blake2b, labels: Tensor | None) -> str:
    if labels is not None:
        digest.update(labels.numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Data:
    """A data set as opened: training images, test images if there are any, and files that could not be read."""

    name: str
    train: Images
    test: Images | None = None
    held_out: Images | None = None  # validation images that are not among the training images, in a subset
    unreadable: list[str] = field(default_factory=list)

    def with_subset(self, count: int) -> Data:
        """Train on a fixed random choice of `count` images beside the validation split; test images stay."""
        rest, validation = validation_split(self.train)
        if not 0 < count <= len(rest):
            raise RequestError(
                f"a subset of {count} images was asked of {self.name}, which has {len(rest)} to choose from"
            )
        chosen = rest[torch.randperm(len(rest), generator=generator(0, "subset"))[:count].sort().values]
        return replace(self, train=self.train.select(chosen), held_out=self.train.select(validation))

    def validation(self) -> tuple[Images, Images]:
        """Labelled images to fit on and labelled images to choose by, both from train; test is never looked at.

        Pretraining itself uses all training images. Terms that use labels see those of the validation images too,
        unless the run has a subset, which keeps clear of them; a run says so.
        """
        if self.held_out is not None:
            return self.train, self.held_out
        fit, validation = validation_split(self.train)
        return self.train.select(fit), self.train.select(validation)


VALIDATION_SHARE, VALIDATION_MOST = 0.1, 5000


def validation_split(images: Images) -> tuple[Tensor, Tensor]:
    """Cut a fixed validation split from training images: (train rows, validation rows).

    A tenth of the images (CIFAR-10: 5,000), the same share of every class, always the same rows. Whatever is chosen
    (λ, a learning rate, an encoder shape) is chosen on it, so that test data are read once per reported number.
    """
    total = len(images)
    count = min(VALIDATION_MOST, max(1, int(total * VALIDATION_SHARE)))
    order = torch.randperm(total, generator=generator(0, "validation"))
    if images.labels is not None:
        # Deal the shuffled images out class by class, so that the first `count` hold an equal share of each class.
        labels = images.labels[order]
        rank = torch.zeros(total)
        for label in labels.unique():
            rows = (labels == label).nonzero().squeeze(1)
            rank[rows] = (torch.arange(len(rows)) + 0.5) / len(rows)
        order = order[rank.argsort(stable=True)]
    return order[count:].sort().values, order[:count].sort().values
