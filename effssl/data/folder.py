"""A folder of images: any depth, any size, labels optional."""

from __future__ import annotations

import io
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from effssl.data.sets import ArrayImages, Data, FolderImages, Images
from effssl.runtime.errors import RequestError, Stopped
from effssl.runtime.files import write_atomically
from effssl.runtime.progress import counter, say

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
IN_MEMORY_SIDE = 64  # images of one size up to this many pixels a side are kept in memory
ORIENTATION = 0x0112  # the EXIF tag; values 5 to 8 swap width and height


IMAGENET100 = Path(__file__).with_name("imagenet100.txt")
TEST_NAMES, VALIDATION_NAMES = ("test",), ("val", "valid", "validation")


def class_names(which: str) -> list[str]:
    """Names of class folders: the 100 of ImageNet-100, or those that a text file lists."""
    path = IMAGENET100 if which == "imagenet100" else Path(which).expanduser()
    try:
        names = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError):
        raise RequestError(f"--classes is imagenet100 or a text file with names of sub-folders, got {which}") from None
    if not names:
        raise RequestError(f"{which} names no classes")
    return sorted(set(names))


def load_folder(root: Path, labels: str = "auto", only: list[str] | None = None) -> Data:
    """Open a folder. `train/` beside `val/` or `test/` splits it; then, or if asked, sub-folders are labels.

    With both, `test/` is what scores are reported on and `val/` what settings are chosen by. `only` are the class
    folders to read, as if the others were not there.
    """

    def part(names: tuple[str, ...]) -> Path | None:
        return next((root / name for name in names if (root / name).is_dir()), None)

    train_root, test_root, val_root = part(("train",)), part(TEST_NAMES), part(VALIDATION_NAMES)
    if train_root is None or (test_root is None and val_root is None):
        unreadable: list[str] = []
        train = _images(root, labels == "folders", None, unreadable, only)
        return Data(root.resolve().name, train, unreadable=unreadable)
    unreadable = []
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
    images = replace(images, labels=index, classes=classes or [])
    one_size = bool((images.sizes == images.sizes[0]).all())
    small = one_size and int(images.sizes[0].max()) <= IN_MEMORY_SIDE
    return _in_memory(images, unreadable) if small else images


def find_images(root: Path, unreadable: list[str], only: list[str] | None = None) -> FolderImages:
    """All image files below a folder; those that cannot be read are added to `unreadable`."""
    missing = [name for name in only or [] if not (root / name).is_dir()]
    if only and missing:
        raise RequestError(f"{root} lacks {len(missing)} of {len(only)} class folders, e.g. {missing[0]}")
    closed: list[str] = []
    files = sorted(_walk(root, only, closed))
    unreadable += closed
    if not files:
        hint = f"; {closed[0]} cannot be looked into" if closed else ""
        raise RequestError(f"no images under {root} (looked for {' '.join(SUFFIXES)}){hint}")
    with ThreadPoolExecutor() as pool, counter(f"looking at {len(files)} images", len(files)) as advance:
        sizes = []
        for size in pool.map(displayed_size, files):
            sizes.append(size)
            advance(1)
    bad = [str(path) for path, size in zip(files, sizes, strict=True) if size is None]
    unreadable += bad
    good = [(path, size) for path, size in zip(files, sizes, strict=True) if size is not None]
    if not good:
        raise RequestError(f"none of the {len(files)} image files under {root} can be read, e.g. {bad[0]}")
    return FolderImages([path for path, _ in good], torch.tensor([size for _, size in good]))


def _walk(root: Path, only: list[str] | None = None, closed: list[str] | None = None) -> Iterator[Path]:
    """Image files below a folder; sub-folders that may not be looked into are added to `closed`."""

    def note(error: OSError) -> None:
        if closed is not None:
            closed.append(str(error.filename))

    seen: set[tuple[int, int]] = set()  # a link to a folder above would lead around forever
    for top in [root] if only is None else [root / name for name in only]:
        for folder, inside, names in os.walk(top, onerror=note, followlinks=True):
            about = os.stat(folder)
            if (about.st_dev, about.st_ino) in seen:
                inside.clear()
                continue
            seen.add((about.st_dev, about.st_ino))
            yield from (
                Path(folder, name) for name in names if name.lower().endswith(SUFFIXES) and not name.startswith(".")
            )


def _folder_labels(root: Path, paths: list[Path], classes: list[str] | None) -> tuple[Tensor, list[str]]:
    """The first folder below the root is the label."""
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


def write_list(images: FolderImages, path: Path) -> None:
    """Store which files a run is trained on: it goes on with the same ones, whatever happens to the folder."""
    names = np.array([os.fsencode(os.path.abspath(file)) for file in images.paths])  # a run may go on from elsewhere
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {"names": names, "sizes": images.sizes.numpy()}
    if images.labels is not None:
        arrays |= {"labels": images.labels.numpy(), "classes": np.array([os.fsencode(c) for c in images.classes])}
    np.savez_compressed(buffer, **arrays)
    write_atomically(path, buffer.getvalue())


def as_listed(images: FolderImages, path: Path) -> FolderImages:
    """The files of a list; those that are gone will be left out when they are needed, new ones are not used."""
    try:
        with np.load(path, allow_pickle=False) as file:
            stored = dict(file)
        paths = [Path(os.fsdecode(name)) for name in stored["names"].tolist()]
        sizes = torch.from_numpy(stored["sizes"])
        labels = torch.from_numpy(stored["labels"]) if "labels" in stored else None
        classes = [os.fsdecode(name) for name in stored["classes"].tolist()] if "classes" in stored else []
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise RequestError(f"{path}, the list of the run's images, cannot be read: {error}") from None
    if classes != images.classes:
        raise RequestError(
            f"the classes of the images have changed since the run began, which {path.parent} cannot follow"
        )
    there = {Path(os.path.abspath(file)) for file in images.paths}
    gone, new = len(set(paths) - there), len(there - set(paths))
    if gone or new:
        say(f"the folder has changed since the run began: {gone} images are gone and left out, {new} new are not used")
    return FolderImages(paths, sizes, labels, classes)


def displayed_size(path: Path) -> tuple[int, int] | None:
    """Height and width after EXIF orientation, from the header alone; None if the file is not an image."""
    try:
        with opened(path) as image:
            width, height = image.size
            swap = image.getexif().get(ORIENTATION, 1) in (5, 6, 7, 8)
            return (width, height) if swap else (height, width)
    except OSError:
        return None


def _in_memory(images: FolderImages, unreadable: list[str]) -> ArrayImages:
    keep, pixels = [], []
    for i, path in enumerate(images.paths):
        try:
            pixels.append(np.asarray(decode(path)))
            keep.append(i)
        except OSError:
            unreadable.append(str(path))
    if not keep:
        raise RequestError(f"none of the {len(images)} images can be decoded, e.g. {images.paths[0]}")
    stack = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
    rows = torch.tensor(keep)
    return ArrayImages(stack, None if images.labels is None else images.labels[rows], images.classes)


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """An image file; whatever is wrong with it is an OSError."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError("not a file")  # a pipe would keep us waiting forever
        with Image.open(path) as image:
            yield image
    except (OSError, Stopped):
        raise
    except Exception as error:  # damaged bytes make decoders raise anything: ValueError, SyntaxError, struct.error …
        raise OSError(f"{type(error).__name__}: {error}") from None


def decode(path: Path, shrink: float = 1.0) -> Image.Image:
    """Read an image file as upright RGB; a JPEG may come smaller than it is, but not below `shrink` times its size."""
    with opened(path) as image:
        if shrink < 1:
            image.draft("RGB", (int(image.width * shrink) + 1, int(image.height * shrink) + 1))
        return upright_rgb(image)


def upright_rgb(image: Image.Image) -> Image.Image:
    """An image as a viewer shows it: EXIF orientation applied, everything as RGB, white behind what is transparent."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16-bit gray: PIL's own conversion clips instead of scaling
        deep = np.asarray(image).astype(np.int64)
        gray = Image.fromarray((deep >> 8 if deep.max() > 255 else deep).clip(0, 255).astype(np.uint8))
        return gray.convert("RGB")
    if "A" in image.getbands() or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")
