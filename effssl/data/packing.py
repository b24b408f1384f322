"""`effssl pack`: decode images once, into a folder that training reads without decoding (effssl/data/pack.py).

During packing the folder holds pixels.part and index.part instead, and the same command resumes from them.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from effssl.augment.pixel_format import LIMITS, PixelFormat
from effssl.data.dataset import Data
from effssl.data.decoding import FORK, MARGIN, EncodedFiles, begin_worker, started, worker_count
from effssl.data.formats import decode_picture, read_pixels
from effssl.data.hub import is_hub
from effssl.data.pack import FORMAT, FORMAT_OF_PIXELS, check_pack, is_pack
from effssl.data.parts import EncodedImages
from effssl.data.sources import find_source, open_data
from effssl.data.video import is_video
from effssl.data.webdataset import is_shards
from effssl.runtime.append_store import AppendStore, claim_folder
from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.files import check_writable, write_atomically
from effssl.runtime.progress import progress_bar, say
from effssl.schema import to_dict

BATCH = 64  # images that are appended at a time
LISTED = 5  # unreadable files that a message names
RECORD = np.dtype([("height", "<i4"), ("width", "<i4"), ("crc", "<u4")])  # height 0: not decodable


def pack(
    folder: str | Path,
    out: str | Path | None = None,
    *,
    short_side: int = 256,
    labels: Literal["auto", "folders", "none"] = "auto",
    classes: str = "",
    workers: int = -1,
) -> Path:
    """Decode images once, so that training needs no decoding; repeated after an interruption, it resumes.

    Given a finished pack and no `out`, verify every image's checksum instead.

    Args:
        folder: folder, table or archive of images, or a finished pack to verify
        out: folder to create; default <folder>.pack
        short_side: larger images are resized to this many pixels on their shorter side; 0 keeps every size
        labels: as in pretrain: whether sub-folders are labels
        classes: pack only these class folders: imagenet100, or a text file with their names
        workers: processes that decode; -1 is one per core
    """
    root = Path(folder).expanduser()
    if is_pack(root) and out is None:
        return _verify(root)
    source = find_source(str(folder))
    if source is None or not source.encoded:
        raise RequestError(f"{folder} is not a folder of images")
    if out is None and not root.exists() and any(one(str(folder)) for one in (is_shards, is_hub, is_video)):
        raise RequestError(f"--out is needed: a folder for the pack of {folder}")
    if short_side < 0:
        raise RequestError(f"short_side is {short_side}; it must be at least 0")
    target = Path(out).expanduser() if out else root.resolve().with_name(f"{root.resolve().name}.pack")
    if target.resolve() == root.resolve() or root.resolve() in target.resolve().parents:
        raise RequestError(f"{target} is inside the folder to be packed; choose another --out")
    check_writable(target)
    below = root if root.is_dir() else root.resolve().parent
    write_pack(open_data(str(folder), labels, classes=classes), below, target, short_side, workers)
    return target


def _verify(folder: Path) -> Path:
    damaged = list(check_pack(folder))
    if damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        raise RunFailed(f"the pack {folder} is damaged: {damaged[0]}{more}; pack it again")
    return folder


@dataclass(frozen=True)
class _PackPlan:
    """What is packed: the images of each split, below a root folder, and the size they get."""

    root: Path
    splits: dict[str, EncodedImages]
    short_side: int

    @property
    def pixels(self) -> PixelFormat:
        """What the pixels of all images are."""
        return self.splits["train"].pixel_format

    def record(self) -> dict[str, Any]:
        """As plan.json holds it; another plan cannot be resumed."""
        splits = {name: [len(images), images.fingerprint()] for name, images in self.splits.items()}
        return self.pixel_record() | {"short_side": self.short_side, "parts": splits}

    def pixel_record(self) -> dict[str, Any]:
        """The format of the pack."""
        if self.pixels.is_picture:
            return {"format": FORMAT}
        return {"format": FORMAT_OF_PIXELS, "pixels": to_dict(self.pixels)}


def write_pack(data: Data, root: Path, out: Path, short_side: int, workers: int) -> None:
    """Decode all splits of an opened folder into `out`, resuming an earlier attempt."""
    splits = {"train": data.train, "test": data.test, "validation": data.held_out}
    folders = {name: images for name, images in splits.items() if isinstance(images, EncodedImages)}
    if any(images is not None and name not in folders for name, images in splits.items()):
        raise RequestError(f"{data.name} is small enough to be kept in memory; there is nothing to pack")
    if (out / "pack.json").is_file():
        raise RequestError(f"the pack {out} is finished; choose another --out, or verify it with effssl pack {out}")
    if data.unreadable:
        listed = ", ".join(data.unreadable[:LISTED]) + (" …" if len(data.unreadable) > LISTED else "")
        say(f"skipped, cannot be read ({len(data.unreadable)}): {listed}")
    plan = _PackPlan(root, folders, short_side)
    for name, images in folders.items():
        if (images.pixel_format.channels, images.pixel_format.depth) != (plan.pixels.channels, plan.pixels.depth):
            raise RequestError(f"{data.name}: the {name} images have {images.pixel_format}, the others {plan.pixels}")
    differs = "was begun with other images or another --short-side; choose another --out"
    with claim_folder(out, plan.record(), differs):
        if (out / "pack.json").is_file():
            raise RequestError(f"the pack {out} was finished by another process meanwhile")
        _finish(out, plan, _write_pixels(out, plan, workers))


def resized_sizes(sizes: torch.Tensor, short_side: int) -> torch.Tensor:
    """Sizes N×2 with a shorter side of at most `short_side`, the aspect ratio kept.

    >>> resized_sizes(torch.tensor([[100, 200], [600, 400]]), 200).tolist()
    [[100, 200], [300, 200]]
    """
    if not short_side:
        return sizes
    scale = (short_side / sizes.min(1, keepdim=True).values.double()).clamp(max=1)
    return (sizes * scale).round().clamp(min=1).long()


class _DecodedImages(Dataset):
    """Worker side: an image as height×channels×width, or an error message."""

    def __init__(
        self, files: Sequence[EncodedFiles], sizes: torch.Tensor, short_side: int, pixels: PixelFormat
    ) -> None:
        self.files = files  # of each split
        self.pixels = pixels
        self.ends = np.cumsum([len(part) for part in files])
        self.sizes = resized_sizes(sizes, short_side).numpy()
        self.scales = (self.sizes[:, 0] / sizes[:, 0].numpy()).tolist()

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, row: int) -> np.ndarray | str:
        split = int(np.searchsorted(self.ends, row, "right"))
        files, place = self.files[split], row - int(self.ends[split]) + len(self.files[split])
        height, width = self.sizes[row].tolist()
        try:
            if not self.pixels.is_picture:
                pixels = resized(read_pixels(files.content(place), self.pixels), width, height)
                return np.ascontiguousarray(pixels.transpose(0, 2, 1))
            image = decode_picture(files.content(place), MARGIN * self.scales[row])
            if image.size != (width, height):
                image = image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
        except OSError as error:
            return f"{files.name(place)}: {error}"
        return np.ascontiguousarray(np.asarray(image).transpose(0, 2, 1))


def resized(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    """An image H×W×C of any type of values at another size, antialiased."""
    if pixels.shape[:2] == (height, width):
        return pixels
    channels = [Image.fromarray(np.ascontiguousarray(channel, np.float32)) for channel in np.moveaxis(pixels, 2, 0)]
    small = np.stack([np.asarray(c.resize((width, height), Image.Resampling.BICUBIC)) for c in channels], 2)
    if pixels.dtype == np.float32:
        return small
    return small.round().clip(*LIMITS[pixels.dtype.name]).astype(pixels.dtype)


def _write_pixels(out: Path, plan: _PackPlan, workers: int) -> np.ndarray:
    """Append the pixels of all images that an earlier attempt has not written; the records of all."""
    splits = plan.splits.values()
    files = [images.files() for images in splits]
    images = _DecodedImages(files, torch.cat([images.sizes for images in splits]), plan.short_side, plan.pixels)
    if (out / "pixels.bin").exists():  # the earlier attempt was stopped between its last two steps
        os.replace(out / "pixels.bin", out / "pixels.part")
    with AppendStore(out / "pixels.part", out / "index.part", RECORD, partial(_total, pixels=plan.pixels)) as store:
        done = len(store.records())
        if done:
            say(f"resuming after {done} of {len(images)} images")
        with progress_bar("packing images", len(images)) as advance:
            advance(done)
            for items in started(_loader(images, done, workers)):
                records = np.array([_record(item) for item in items], RECORD)
                store.append([item for item in items if not isinstance(item, str)], records)
                advance(len(items))
        return store.records()


def _loader(images: _DecodedImages, first: int, workers: int) -> DataLoader:
    workers = worker_count(workers)
    return DataLoader(
        images,
        sampler=range(first, len(images)),
        batch_size=BATCH,
        num_workers=workers,
        collate_fn=list,
        multiprocessing_context=FORK if workers else None,
        worker_init_fn=partial(begin_worker, parent=os.getpid()),
    )


def _record(image: np.ndarray | str) -> tuple[int, int, int]:
    if isinstance(image, str):
        say(f"skipped, cannot be decoded: {image}")
        return 0, 0, 0
    return image.shape[0], image.shape[2], zlib.crc32(image.data)


def _lengths(records: np.ndarray, pixels: PixelFormat) -> np.ndarray:
    """Bytes of each image."""
    return pixels.bytes * records["height"].astype(np.int64) * records["width"]


def _total(records: np.ndarray, pixels: PixelFormat) -> int:
    """Bytes of all images."""
    return int(_lengths(records, pixels).sum())


def _finish(out: Path, plan: _PackPlan, records: np.ndarray) -> None:
    """Write the index and rename the pixels: from here on the folder is a pack."""
    decoded = records["height"] > 0
    counts = {}
    start = 0
    for name, images in plan.splits.items():
        counts[name] = int(decoded[start : start + len(images)].sum())
        start += len(images)
    if not counts["train"]:
        raise RequestError("none of the training images can be decoded")
    buffer = io.BytesIO()
    np.savez(buffer, **_index(plan, records, decoded))
    index = buffer.getvalue()
    write_atomically(out / "index.npz", index)
    os.replace(out / "pixels.part", out / "pixels.bin")
    summary = plan.pixel_record() | {
        "short_side": plan.short_side, "parts": counts, "classes": plan.splits["train"].classes,
        "bytes": _total(records, plan.pixels), "index": hashlib.sha256(index).hexdigest(),
        "root": os.path.relpath(plan.root.resolve(), out.resolve()),
    }  # fmt: skip
    write_atomically(out / "pack.json", json.dumps(summary, indent=2) + "\n")
    for name in ("index.part", "plan.json", "lock"):
        (out / name).unlink(missing_ok=True)


def _index(plan: _PackPlan, records: np.ndarray, decoded: np.ndarray) -> dict[str, Any]:
    """Arrays of index.npz: where each decoded image begins, its size, checksum, name and label."""
    folders, lengths = list(plan.splits.values()), _lengths(records, plan.pixels)
    paths = [path for images in folders for path in images.paths or []]
    arrays: dict[str, Any] = {
        "offsets": (np.cumsum(lengths) - lengths)[decoded],
        "heights": records["height"][decoded],
        "widths": records["width"][decoded],
        "crcs": records["crc"][decoded],
        "names": np.array([os.fsencode(os.path.relpath(path, plan.root)) for path in paths])[decoded],
    }
    labels = [images.labels for images in folders if images.labels is not None]
    if len(labels) == len(folders):
        arrays["labels"] = torch.cat(labels).numpy()[decoded]
    return arrays
