"""Packs: images that were decoded once, in a folder of three files that training reads without decoding.

pixels.bin  the images one after another, each as height×channels×width; uint8, uint16 or float32
index.npz   per image: where it begins, its size, checksum, label and name
pack.json   what the pack is: its parts, classes, short side and, of other than pictures, pixels; a digest of the index;
            where the images were

effssl/data/packing.py writes these files; this module reads them.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from effssl.augment.pixel_format import PICTURES, PixelFormat
from effssl.data.dataset import Data
from effssl.data.display import picture
from effssl.data.images import (
    CropRequest,
    Crops,
    Reading,
    crop_from_pixels,
    hex_digest,
    read_ahead,
    select_labels,
)
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import progress_bar
from effssl.runtime.reading import check_regular, describe, read_arrays, read_bytes, read_json, read_start
from effssl.schema import build, check

FORMAT = "effssl pack 1"  # of pictures
FORMAT_OF_PIXELS = "effssl pack 2"  # of other pixels, which earlier versions would misread
FILES = ("pack.json", "index.npz", "pixels.bin")
PART = 32  # images that are cropped at a time: as floats, a batch of photographs takes much memory
PADDING = 2.0  # largest size of such a part, padded to its largest height and width, relative to its images


@dataclass(frozen=True)
class PackedImages:
    """Images of any size that `effssl pack` decoded: parts of a memory-mapped file, read each time they are needed."""

    pixels: np.ndarray  # the whole file, as bytes; an image is stored there as height×channels×width
    offsets: Tensor  # N int64: where each image begins
    sizes: Tensor  # N×2 int64: height, width
    digest: str  # of the pack's index
    paths: list[Path]  # of the files that were packed; relative to their folder where that is gone
    labels: Tensor | None = None
    classes: list[str] = field(default_factory=list)
    pixel_format: PixelFormat = PICTURES
    in_memory = False
    from_files = False

    def __len__(self) -> int:
        return len(self.offsets)

    def select(self, rows: Tensor) -> PackedImages:
        """The same set with only these rows."""
        paths = [self.paths[row] for row in rows.tolist()]
        labels = select_labels(self.labels, rows)
        return replace(self, offsets=self.offsets[rows], sizes=self.sizes[rows], paths=paths, labels=labels)

    def fingerprint(self) -> str:
        """A short digest that changes when an image or a label does."""
        digest = hashlib.blake2b(self.digest.encode(), digest_size=8)
        digest.update(self.offsets.contiguous().numpy().data)
        return hex_digest(digest, self.labels)

    def read(self, rows: Tensor) -> Tensor:
        """Images N×C×H×W in the top left corner of the largest height and width among them."""
        sizes, channels, bytes_of = self.sizes[rows], self.pixel_format.channels, self.pixel_format.bytes
        height, width = sizes.amax(0).tolist()
        # Not by torch: this runs in a thread, where torch's own threads would stay and compete with those of training.
        out = np.zeros((len(rows), height, channels, width), self.pixel_format.depth)
        for image, start, (h, w) in zip(out, self.offsets[rows].tolist(), sizes.tolist(), strict=True):
            content = self.pixels[start : start + bytes_of * h * w]
            image[:h, :, :w] = content.view(out.dtype).reshape(h, channels, w)
        return torch.from_numpy(out).transpose(1, 2)

    def array(self, row: int) -> np.ndarray:
        """The pixels of one whole image, H×W×C."""
        return self.read(torch.tensor([row]))[0].permute(1, 2, 0).numpy()

    def image(self, row: int) -> Image.Image:
        """One whole image."""
        return picture(self.array(row), self.pixel_format)

    def crops(self, requests: Iterable[CropRequest], reading: Reading) -> Iterator[Crops]:
        """The crops of each request, in order; a thread reads one batch ahead."""

        def read(request: CropRequest) -> list[Tensor]:
            return [self.read(rows) for rows in request.rows.split(self._counts(request.rows))]

        return crop_from_pixels(read_ahead(read, requests), self.pixel_format, reading)

    def _counts(self, rows: Tensor) -> list[int]:
        """How many successive images are read at a time: one tall and one wide image would become two large ones."""
        counts: list[int] = []
        height = width = area = 0
        for h, w in self.sizes[rows].tolist():
            height, width, area = max(height, h), max(width, w), area + h * w
            count = counts[-1] + 1 if counts else 1
            if not counts or count > PART or height * width * count > PADDING * area:
                counts.append(1)
                height, width, area = h, w, h * w
            else:
                counts[-1] = count
        return counts


def is_pack(folder: str | Path) -> bool:
    """Whether a folder is a pack, finished or not."""
    root = Path(folder).expanduser()
    if any(b"effssl pack" in read_start(root / name, 200) for name in ("pack.json", "plan.json")):
        return True
    return all(os.path.lexists(root / name) for name in FILES)  # a damaged pack.json


def open_pack(spec: str | Path, labels: str = "auto") -> Data:
    """Open a finished pack; its index is checked, its pixels are mapped into memory."""
    folder = Path(spec).expanduser()
    about, arrays = _read_index(folder)
    pixels = np.asarray(np.memmap(folder / "pixels.bin", np.uint8, "r"))  # a plain view: indexing it is quicker
    given = torch.from_numpy(arrays["labels"].astype(np.int64)) if "labels" in arrays and labels != "none" else None
    if labels == "folders" and given is None:
        raise RequestError(f"{folder} was packed without labels; pack it again with --labels folders")
    whole = PackedImages(
        pixels,
        torch.from_numpy(arrays["offsets"].astype(np.int64)),
        torch.from_numpy(np.stack([arrays["heights"], arrays["widths"]], 1).astype(np.int64)),
        about["index"],
        _original_paths(folder, about.get("root", ""), [os.fsdecode(name) for name in arrays["names"].tolist()]),
        given,
        about["classes"] if given is not None else [],
        pixels_of(about),
    )
    parts, start = {}, 0
    for name, count in about["parts"].items():
        parts[name] = whole.select(torch.arange(start, start + count))
        start += count
    return Data(folder.resolve().stem, parts["train"], parts.get("test"), parts.get("validation"))


def _original_paths(pack: Path, root: str, names: list[str]) -> list[Path]:
    """The files that were packed, by their names below `root`, which is relative to the pack."""
    origin = Path(os.path.normpath(pack.resolve() / root)) if root else Path()
    there = bool(root) and os.path.lexists(origin / Path(names[0]).parts[0])  # of an archive, its file
    return [origin / name if there else Path(name) for name in names]


def _read_index(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    if not (folder / "pack.json").is_file():
        raise RequestError(f"the pack {folder} is not finished; run the same effssl pack again")
    try:
        about = read_json(folder / "pack.json")
        content = read_bytes(folder / "index.npz")
        check_regular(folder / "pixels.bin")
        size = (folder / "pixels.bin").stat().st_size
        if about["format"] not in (FORMAT, FORMAT_OF_PIXELS):
            raise RequestError(f"{folder} has the format {about['format']!r}; this effssl reads {FORMAT!r}")
        if hashlib.sha256(content).hexdigest() != about["index"] or size != about["bytes"]:
            raise RequestError(f"the pack {folder} is damaged (its checksum or size does not fit); pack it again")
        arrays = read_arrays(content)
        _check_index(about, arrays, size)
        return about, arrays
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"the pack {folder} cannot be read ({describe(error)}); pack it again") from None


def pixels_of(about: dict[str, Any]) -> PixelFormat:
    """What the pixels of a pack are, by its pack.json."""
    if about["format"] == FORMAT:
        return PICTURES
    pixels = build(PixelFormat, about["pixels"], "its pixels")
    check(pixels, "its pixels.")
    return pixels


def _check_index(about: dict[str, Any], arrays: dict[str, np.ndarray], size: int) -> None:
    """Refuse, with a ValueError, an index whose columns do not fit together, its summary or the file of pixels."""
    parts, classes = about["parts"], about["classes"]
    if not isinstance(about.get("root", ""), str):
        raise ValueError("its folder of images is not a path")
    if not all(type(count) is int and count >= 0 for count in parts.values()) or not parts["train"]:
        raise ValueError("its parts are not numbers of images")
    columns = {name: arrays[name] for name in ("offsets", "heights", "widths", "crcs", "names")}
    columns |= {"labels": arrays["labels"]} if "labels" in arrays else {}
    if any(column.shape != (sum(parts.values()),) for column in columns.values()):
        raise ValueError("its columns do not have a value for each image of its parts")
    if any(column.dtype.kind not in ("S" if name == "names" else "iu") for name, column in columns.items()):
        raise ValueError("its columns do not have the right types")
    height, width, start = (columns[name].astype(np.int64) for name in ("heights", "widths", "offsets"))
    if min(height.min(), width.min()) < 1 or max(height.max(), width.max()) > size or start.min() < 0:
        raise ValueError("sizes or positions of its images are out of range")
    if (start > size - pixels_of(about).bytes * height * width).any():
        raise ValueError("images lie beyond the end of its pixels")
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise ValueError("its classes are not names")
    if "labels" in columns and not 0 <= columns["labels"].min() <= columns["labels"].max() < len(classes):
        raise ValueError("its labels are not numbers of its classes")


def check_pack(folder: Path) -> Iterator[str]:
    """Read all pixels; names of the images whose checksum does not fit."""
    about, arrays = _read_index(folder)
    pixels = np.memmap(folder / "pixels.bin", np.uint8, "r")
    lengths = pixels_of(about).bytes * arrays["heights"].astype(np.int64) * arrays["widths"]
    with progress_bar("checking images", len(lengths)) as advance:
        columns = (arrays[key].tolist() for key in ("offsets", "crcs", "names"))
        for length, start, crc, name in zip(lengths.tolist(), *columns, strict=True):
            if zlib.crc32(pixels[start : start + length].data) != crc:
                yield os.fsdecode(name)
            advance(1)
