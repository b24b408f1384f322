"""A folder of images: any depth, any size, labels optional."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from effssl.augment.pixel_format import PICTURES, PixelFormat
from effssl.data.arrays import ArrayImages
from effssl.data.dataset import Data
from effssl.data.decoding import DiskFiles, crop_files
from effssl.data.display import picture
from effssl.data.file_types.file_type import FileAbout
from effssl.data.formats import (
    SUFFIXES,
    FormatsFound,
    examine_all,
    has_signature,
    may_be_image,
    measured_range,
    read_pixels,
    reason,
)
from effssl.data.images import CropRequest, Crops, Images, Reading, hex_digest, select_labels
from effssl.runtime.errors import RequestError
from effssl.runtime.reading import read_text

IN_MEMORY_SIDE = 64  # images of one size up to this many pixels a side are kept in memory
IN_MEMORY_BYTES = 1 << 31  # that they take there at most
IMAGENET100 = Path(__file__).with_name("imagenet100.txt")
TEST_NAMES = ("test",)
VALIDATION_NAMES = ("val", "valid", "validation")


@dataclass(frozen=True)
class FolderImages:
    """Image files of any size, decoded each time they are read."""

    paths: list[Path]
    sizes: Tensor  # N×2 int64: height, width as displayed (EXIF orientation applied)
    labels: Tensor | None = None
    classes: list[str] = field(default_factory=list)
    pixel_format: PixelFormat = PICTURES
    reported: set[str] = field(default_factory=set, repr=False, compare=False)  # files that were said to be left out
    in_memory = False
    from_files = True

    def __len__(self) -> int:
        return len(self.paths)

    def select(self, rows: Tensor) -> FolderImages:
        """The same set with only these rows."""
        paths = [self.paths[row] for row in rows.tolist()]
        return replace(self, paths=paths, sizes=self.sizes[rows], labels=select_labels(self.labels, rows))

    def fingerprint(self) -> str:
        """A short digest of the files' names, sizes and labels (not of their pixels: that would take long)."""
        digest = hashlib.blake2b(digest_size=8)
        for path, size in zip(self.paths, self.sizes.tolist(), strict=True):
            digest.update(f"{path.parent.name}/{path.name} {size}\n".encode("utf-8", "surrogateescape"))
        return hex_digest(digest, self.labels)

    def files(self) -> DiskFiles:
        """The files as workers read them."""
        return DiskFiles(self.paths)

    def array(self, row: int) -> np.ndarray:
        """The pixels of one whole image, H×W×C."""
        return read_pixels(self.paths[row], self.pixel_format)

    def image(self, row: int) -> Image.Image:
        """One whole image."""
        return picture(self.array(row), self.pixel_format)

    def crops(self, requests: Iterable[CropRequest], reading: Reading) -> Iterator[Crops]:
        """The crops of each request, in order; workers decode some batches ahead."""
        return crop_files(self.files(), self.sizes, self.pixel_format, requests, reading, self.reported)


def is_folder(spec: str) -> bool:
    """Whether a name is that of a folder."""
    return Path(spec).expanduser().is_dir()


def open_folder(spec: str, labels: str = "auto", classes: str = "") -> Data:
    """Open a folder of images; `classes` names the class folders to read, as `class_names` does."""
    return load_folder(Path(spec).expanduser(), labels, class_names(classes) if classes else None)


def class_names(which: str) -> list[str]:
    """Names of class folders: the 100 of ImageNet-100, or those in a text file."""
    path = IMAGENET100 if which == "imagenet100" else Path(which).expanduser()
    try:
        names = read_text(path).split()
    except (OSError, ValueError):
        raise RequestError(f"--classes is imagenet100 or a text file with names of sub-folders, got {which}") from None
    if not names:
        raise RequestError(f"{which} names no classes")
    return sorted(set(names))


def load_folder(root: Path, labels: str = "auto", only: list[str] | None = None) -> Data:
    """Open a folder. `train/` beside `val/` or `test/` splits it. Then sub-folders are labels; else on request.

    With both, scores are reported on `test/` and settings are chosen on `val/`. `only` are the class folders to read;
    others are ignored.
    """

    def part(names: tuple[str, ...]) -> Path | None:
        return next((root / name for name in names if (root / name).is_dir()), None)

    unreadable: list[str] = []
    train_root, test_root, val_root = part(("train",)), part(TEST_NAMES), part(VALIDATION_NAMES)
    if train_root is None or (test_root is None and val_root is None):
        train = _images(root, labels == "folders", None, unreadable, only)
        return Data(root.resolve().name, train, unreadable=unreadable)
    roots = [folder for folder in (train_root, test_root, val_root) if folder is not None]
    loose = any(file.parent == folder for folder in roots for file in _walk(folder, only))
    with_labels = labels == "folders" or (labels == "auto" and not loose)
    train = _images(train_root, with_labels, None, unreadable, only)

    def beside(folder: Path | None) -> Images | None:
        return None if folder is None else _images(folder, with_labels, train.classes or None, unreadable, only)

    test, held_out = (beside(test_root), beside(val_root)) if test_root else (beside(val_root), None)
    return Data(root.resolve().name, train, test, held_out if with_labels else None, unreadable)


def _images(
    root: Path, with_labels: bool, classes: list[str] | None, unreadable: list[str], only: list[str] | None = None
) -> Images:
    images = find_images(root, unreadable, only)
    index = None
    if with_labels:
        index, classes = _folder_labels(root, images.paths, classes)
    return keep_small(replace(images, labels=index, classes=classes or []), unreadable)


def find_images(root: Path, unreadable: list[str], only: list[str] | None = None) -> FolderImages:
    """All image files below a folder; those that cannot be read are added to `unreadable`."""
    missing = [name for name in only or [] if not (root / name).is_dir()]
    if only and missing:
        raise RequestError(f"{root} lacks {len(missing)} of {len(only)} class folders, e.g. {missing[0]}")
    closed: list[str] = []
    files = sorted(_walk(root, only, closed))
    unreadable += closed
    if not files:
        hint = f"; {closed[0]} cannot be opened" if closed else ""
        raise RequestError(f"no images under {root} (looked for {' '.join(SUFFIXES)}){hint}")
    images, good = images_of(files, examine_all(files))
    unreadable += [str(files[row]) for row in sorted(set(range(len(files))) - set(good))]
    if images is None:
        raise RequestError(
            f"none of the {len(files)} image files under {root} can be read, e.g. {files[0]}{reason(files[0])}"
        )
    return images


def images_of(files: list[Path], abouts: Sequence[FileAbout | None]) -> tuple[FolderImages | None, list[int]]:
    """Files that can be read as images of one format, and their rows; None where there are none."""
    good = [(row, about) for row, about in enumerate(abouts) if about is not None]
    if not good:
        return None, []
    rows = [row for row, _ in good]
    paths = [files[row] for row in rows]
    formats = FormatsFound()
    for place, (_, about) in enumerate(good):
        formats.add(place, about)
    pixels = formats.common(lambda place: paths[place])
    pixels = measured_range(pixels, len(paths), lambda place: read_pixels(paths[place], pixels))
    sizes = torch.tensor([about.size for _, about in good])
    return FolderImages(paths, sizes, pixel_format=pixels), rows


def _walk(root: Path, only: list[str] | None = None, closed: list[str] | None = None) -> Iterator[Path]:
    """Image files below a folder; sub-folders that cannot be opened are added to `closed`."""

    def note(error: OSError) -> None:
        if closed is not None:
            closed.append(str(error.filename))

    seen: set[tuple[int, int]] = set()  # a link to a parent folder would loop forever
    for top in [root] if only is None else [root / name for name in only]:
        for folder, inside, names in os.walk(top, onerror=note, followlinks=True):
            about = os.stat(folder)
            if (about.st_dev, about.st_ino) in seen:
                inside.clear()
                continue
            seen.add((about.st_dev, about.st_ino))
            for path in (Path(folder, name) for name in names):
                if may_be_image(path) and (path.suffix.lower() in SUFFIXES or has_signature(path)):
                    yield path


def _folder_labels(root: Path, paths: list[Path], classes: list[str] | None) -> tuple[Tensor, list[str]]:
    """Labels and classes: the first folder below the root is an image's class."""
    names = [path.relative_to(root).parts[0] if path.parent != root else "" for path in paths]
    if "" in names:
        loose = paths[names.index("")]
        raise RequestError(f"sub-folders of {root} are labels, but {loose.name} lies outside of any sub-folder")
    if classes is None:
        classes = sorted(set(names))
    unknown = sorted(set(names) - set(classes))
    if unknown:
        raise RequestError(f"{root} has the class folder {unknown[0]!r}, which the training folder does not have")
    position = {name: i for i, name in enumerate(classes)}
    return torch.tensor([position[name] for name in names]), classes


def keep_small(images: Images, unreadable: list[str]) -> Images:
    """Small images of one size, decoded into memory if they fit; other images as they are."""
    one_size = bool((images.sizes == images.sizes[0]).all())
    small = one_size and int(images.sizes[0].max()) <= IN_MEMORY_SIDE
    fit = images.pixel_format.bytes * int(images.sizes[0].prod()) * len(images) <= IN_MEMORY_BYTES
    return _in_memory(images, unreadable) if small and fit else images


def _in_memory(images: Images, unreadable: list[str]) -> ArrayImages:
    """Decode all images; those that cannot be decoded are added to `unreadable`."""
    files = images.paths
    assert files is not None
    keep, pixels = [], []
    for i, path in enumerate(files):
        try:
            pixels.append(images.array(i))
            keep.append(i)
        except OSError:
            unreadable.append(str(path))
    if not keep:
        raise RequestError(f"none of the {len(images)} images can be decoded, e.g. {files[0]}")
    stack = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
    rows = torch.tensor(keep)
    paths = [files[i] for i in keep]
    return ArrayImages(stack, select_labels(images.labels, rows), images.classes, paths, images.pixel_format)
