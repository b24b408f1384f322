"""Data sets of Hugging Face's `datasets`, by the name of a local folder or of the Hub: hf:<folder or name>[:split]."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from effssl.data.archive import ArchiveImages
from effssl.data.dataset import Data
from effssl.data.formats import FormatsFound, examine, measured_range, read_pixels
from effssl.data.hub_loading import is_name, load_folder, load_name
from effssl.data.parts import SPLITS, divide
from effssl.runtime.errors import RequestError, did_you_mean
from effssl.runtime.progress import progress_bar
from effssl.runtime.reading import describe, read_bytes

PREFIX = "hf:"
LABEL_COLUMNS = ("label", "class")


@dataclass(frozen=True)
class HubFiles:
    """Encoded images of data sets, which are memory-mapped."""

    folder: Path
    splits: list[tuple[str, Any]]  # a name and a data set of encoded images alone, each a dict of bytes and path
    rows: np.ndarray  # N×2: number of the split, row of its data set
    crcs: np.ndarray  # N

    def __len__(self) -> int:
        return len(self.rows)

    def pick(self, rows: np.ndarray) -> HubFiles:
        """Some of them."""
        return replace(self, rows=self.rows[rows], crcs=self.crcs[rows])

    def path(self, row: int) -> Path:
        """The folder, the split and the number there; no such file exists."""
        split, place = self.rows[row].tolist()
        return self.folder / self.splits[split][0] / str(place)

    def name(self, row: int) -> str:
        """What messages call a file."""
        return str(self.path(row))

    def content(self, row: int) -> bytes:
        """A file's bytes; raises OSError if they cannot be read."""
        split, place = self.rows[row].tolist()
        try:
            image = next(iter(self.splits[split][1][place].values()))
        except ValueError as error:  # damaged Arrow files
            raise OSError(describe(error)) from None
        if image and image["bytes"] is not None:
            return image["bytes"]
        if not image or not image["path"]:
            raise OSError("it holds no image")
        return read_bytes(Path(image["path"]))

    def stamp(self, row: int) -> str:
        """Its place and checksum."""
        return f"{self.path(row)} {self.crcs[row]}"

    def records(self) -> Iterator[bytes]:
        """Of each file, its place and checksum."""
        for (split, place), crc in zip(self.rows.tolist(), self.crcs.tolist(), strict=True):
            yield f"{self.splits[split][0]} {place} {crc}\n".encode()


def is_hub(spec: str) -> bool:
    """Whether a value names a data set of Hugging Face."""
    return spec.startswith(PREFIX)


def open_hub(spec: str, labels: str = "auto") -> Data:
    """Open a data set, all its splits or one of them; its label column is used unless `labels` is none."""
    if labels == "folders":
        raise RequestError(f"--labels folders is for folders of images; labels of {spec} are a column")
    place, split = place_of(spec)
    try:
        import datasets
    except ImportError:
        raise RequestError(f"{spec} needs the package datasets: pip install 'effssl[hf]'") from None
    found = load_name(datasets, place) if isinstance(place, str) else load_folder(datasets, place)
    chosen = _choose(spec, found, split)
    named = None if labels == "none" else [_labels(datasets, spec, name, found[name]) for name in chosen]
    encoded = [(name, _encoded(datasets, spec, found[name])) for name in chosen]
    unreadable: list[str] = []
    folder = Path(place)
    images, good = _examine(folder, encoded, unreadable)
    of_split = [name for name, data in encoded for _ in range(len(data))]
    complete = None
    if named is not None and all(part is not None for part in named):
        complete = [label for part in named for label in part or []]
    return divide(
        folder.name,
        images,
        None if complete is None else [complete[row] for row in good],
        None if split else [of_split[row] for row in good],
        unreadable,
    )


def place_of(spec: str) -> tuple[Path | str, str]:
    """The folder, or the name on the Hub, and the split that a value names; "" is all splits."""
    text = spec.removeprefix(PREFIX)
    whole = os.path.abspath(os.path.expanduser(text))
    folder, _, split = whole.rpartition(":")
    if Path(whole).is_dir():
        return Path(whole), ""
    if folder and Path(folder).is_dir():
        return Path(folder), split
    name, _, split = text.partition(":")
    if is_name(name):
        return name, split
    raise RequestError(f"{spec} names no local folder; hf:NAME or hf:OWNER/NAME is a data set of the Hugging Face Hub")


def absolute_hub(spec: str) -> str:
    """A value that means the same from every working folder."""
    path = PREFIX + os.path.abspath(os.path.expanduser(spec.removeprefix(PREFIX)))
    try:
        place, _ = place_of(spec)
    except RequestError:
        return path
    return spec if isinstance(place, str) else path


def _choose(spec: str, found: dict[str, Any], split: str) -> list[str]:
    if not found:
        raise RequestError(f"{spec} holds neither a saved data set nor Parquet files")
    if split:
        if split not in found:
            raise RequestError(
                f"{spec}: there is no split {split!r}; found: {', '.join(found)}{did_you_mean(split, found)}"
            )
        return [split]
    if "train" not in found:
        raise RequestError(f"{spec} has no split named train; choose one: {spec}:{next(iter(found))}")
    return [name for name in found if name in SPLITS]


def _encoded(datasets: ModuleType, spec: str, data: Any) -> Any:
    """The column of images alone, not decoded."""
    columns = [name for name, kind in data.features.items() if isinstance(kind, datasets.Image)]
    if not columns:
        raise RequestError(f"{spec} has no column of images; found: {', '.join(data.features)}")
    return data.select_columns(columns[:1]).cast_column(columns[0], datasets.Image(decode=False))


def _labels(datasets: ModuleType, spec: str, split: str, data: Any) -> list[str] | None:
    """The label of each image as text; None without a column of labels."""
    classes = [name for name, kind in data.features.items() if isinstance(kind, datasets.ClassLabel)]
    column = next(iter([*classes, *(name for name in LABEL_COLUMNS if name in data.features)]), None)
    if column is None:
        return None
    values = list(data[column])
    if any(value is None or value == -1 for value in values):
        raise RequestError(f"{spec}: images of the split {split} have no label; choose a split, or use --labels none")
    names = data.features[column].names if classes else None
    if names is not None and not all(0 <= value < len(names) for value in values):
        raise RequestError(f"{spec}: labels of the split {split} are not numbers of its {len(names)} classes")
    return [str(value) if names is None else names[value] for value in values]


def _examine(folder: Path, splits: list[tuple[str, Any]], unreadable: list[str]) -> tuple[ArchiveImages, list[int]]:
    """The images that can be read, and which these are."""
    rows = [(number, row) for number, (_, data) in enumerate(splits) for row in range(len(data))]
    files = HubFiles(folder, splits, np.array(rows, np.int64).reshape(-1, 2), np.zeros(len(rows), np.uint32))
    sizes, good, formats = [], [], FormatsFound()
    with progress_bar(f"reading {len(rows)} image sizes", len(rows)) as advance:
        for row in range(len(rows)):
            advance(1)
            try:
                content = files.content(row)
            except OSError:
                content = b""
            about = examine(content)
            if about is None:
                unreadable.append(files.name(row))
                continue
            files.crcs[row] = zlib.crc32(content)
            sizes.append(about.size)
            formats.add(row, about)
            good.append(row)
    if not good:
        raise RequestError(f"none of the {len(rows)} images of {folder} can be read")
    pixels = formats.common(files.name)
    pixels = measured_range(pixels, len(good), lambda place: read_pixels(files.content(good[place]), pixels))
    return ArchiveImages(files.pick(np.array(good)), torch.tensor(sizes), pixel_format=pixels), good
