"""`effssl pack`: images are decoded once, into a folder of three files that training reads without decoding.

pixels.bin  the images one after another, uint8, each as height×3×width
index.npz   per image: where it begins, its size, checksum, label and name
pack.json   what the pack is: its parts, classes and short side, and a digest of the index

While it is made, the folder holds pixels.part and index.part instead, and the same command goes on where it stopped.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from effssl.data import open_data
from effssl.data.decoding import FORK, MARGIN, begin_worker, started
from effssl.data.folder import decode
from effssl.data.sets import Data, FolderImages, PackedImages, is_pack
from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.files import check_room, locked, sweep, write_atomically
from effssl.runtime.progress import counter, say

FORMAT = "effssl pack 1"
TOGETHER = 64  # images between two points from which an interrupted packing can go on
RECORD = np.dtype([("row", "<i8"), ("height", "<i4"), ("width", "<i4"), ("crc", "<u4")])  # height 0: not readable


def pack(
    folder: str | Path,
    out: str | Path | None = None,
    *,
    short_side: int = 256,
    labels: Literal["auto", "folders", "none"] = "auto",
    classes: str = "",
    workers: int = -1,
) -> Path:
    """Decode a folder of images once; training from the pack needs no decoding. An interrupted packing goes on.

    Given a finished pack and no `out`, check every image's checksum instead.

    Args:
        folder: folder of images, or a finished pack to check
        out: folder to make; default <folder>.pack
        short_side: larger images are shrunk to a shorter side of so many pixels; 0 keeps all as they are
        labels: as in pretrain: whether sub-folders are labels
        classes: pack only these class folders: imagenet100, or a text file with their names
        workers: processes that decode; -1 is one per core
    """
    root = Path(folder).expanduser()
    if is_pack(root) and out is None:
        wrong = list(check_pack(root))
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise RunFailed(f"the pack {root} is damaged: {wrong[0]}{more}; pack it again")
        return root
    if is_pack(root) or not root.is_dir():
        raise RequestError(f"{folder} is not a folder of images")
    if short_side < 0:
        raise RequestError(f"short_side is {short_side}; it must be at least 0")
    target = Path(out).expanduser() if out else root.resolve().with_name(f"{root.resolve().name}.pack")
    if target.resolve() == root.resolve() or root.resolve() in target.resolve().parents:
        raise RequestError(f"{target} lies inside the folder that is packed; choose another --out")
    check_room(target)
    write_pack(open_data(str(root), labels, classes=classes), root, target, short_side, workers)
    return target


# ---------------------------------------------------------------------------------------------------------------
# Writing


def write_pack(data: Data, root: Path, out: Path, short_side: int, workers: int) -> None:
    """Decode all parts of an opened folder into `out`, going on where an earlier attempt stopped."""
    parts = {"train": data.train, "test": data.test, "validation": data.held_out}
    images = {name: part for name, part in parts.items() if part is not None}
    if not all(isinstance(part, FolderImages) for part in images.values()):
        raise RequestError(f"{data.name} is small enough to be kept in memory; there is nothing to pack")
    if (out / "pack.json").is_file():
        raise RequestError(f"the pack {out} is finished; choose another --out, or check it with effssl pack {out}")
    left = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if (out.exists() and not out.is_dir()) or (not is_pack(out) and left - {"lock"}):
        raise RequestError(f"{out} exists and is not a pack; choose another --out")
    if data.unreadable:
        shown = ", ".join(data.unreadable[:5]) + (" …" if len(data.unreadable) > 5 else "")
        say(f"files that cannot be read and are left out ({len(data.unreadable)}): {shown}")
    folders = {name: part for name, part in images.items() if isinstance(part, FolderImages)}
    plan = {
        "format": FORMAT, "short_side": short_side,
        "parts": {name: [len(part), part.fingerprint()] for name, part in folders.items()},
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / "lock", f"{out} is being packed", "choose another --out"):
        if (out / "pack.json").is_file():
            raise RequestError(f"the pack {out} was finished by another process meanwhile")
        sweep(out)
        kept = out / "plan.json"
        if not kept.is_file():
            write_atomically(kept, json.dumps(plan))
        elif json.loads(kept.read_text()) != plan:
            raise RequestError(f"{out} was begun with other images or another --short-side; choose another --out")
        paths = [path for part in folders.values() for path in part.paths]
        sizes = torch.cat([part.sizes for part in folders.values()])
        records = _write_pixels(out, _Whole(paths, sizes, short_side), workers)
        _finish(out, plan, folders, root, records)


def shrunk_sizes(sizes: torch.Tensor, short_side: int) -> torch.Tensor:
    """Sizes N×2 with the shorter side at most `short_side`, the aspect kept.

    >>> shrunk_sizes(torch.tensor([[100, 200], [600, 400]]), 200).tolist()
    [[100, 200], [300, 200]]
    """
    if not short_side:
        return sizes
    scale = (short_side / sizes.min(1, keepdim=True).values.double()).clamp(max=1)
    return (sizes * scale).round().clamp(min=1).long()


class _Whole(Dataset):
    """Worker side: a file as height×3×width, or what is wrong with it."""

    def __init__(self, paths: list[Path], sizes: torch.Tensor, short_side: int) -> None:
        self.paths = np.array([os.fsencode(path) for path in paths])  # one buffer, not a list copied on fork
        self.sizes = shrunk_sizes(sizes, short_side).numpy()
        self.shrink = (self.sizes[:, 0] / sizes[:, 0].numpy()).tolist()

    def __getitem__(self, row: int) -> tuple[int, np.ndarray | str]:
        path, (height, width) = Path(os.fsdecode(self.paths[row])), self.sizes[row].tolist()
        try:
            image = decode(path, MARGIN * self.shrink[row])
            if image.size != (width, height):
                image = image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
        except OSError as error:
            return row, f"{path}: {error}"
        return row, np.ascontiguousarray(np.asarray(image).transpose(0, 2, 1))


def _write_pixels(out: Path, images: _Whole, workers: int) -> np.ndarray:
    """Append the pixels of all images, from where an earlier attempt stopped; their records."""
    workers = (os.cpu_count() or 1) if workers < 0 else workers
    if (out / "pixels.bin").exists():  # stopped between its last two lines
        os.replace(out / "pixels.bin", out / "pixels.part")
    with (out / "pixels.part").open("ab") as pixels, (out / "index.part").open("ab") as index:
        done = _recover(out, pixels, index)
        first = int(done["row"][-1]) + 1 if len(done) else 0
        if first:
            say(f"going on after {first} of {len(images.paths)} images")
        loader: DataLoader = DataLoader(
            images,
            sampler=range(first, len(images.paths)),
            batch_size=TOGETHER,
            num_workers=workers,
            collate_fn=list,
            multiprocessing_context=FORK if workers else None,
            worker_init_fn=partial(begin_worker, parent=os.getpid()),
        )
        with counter("packing images", len(images.paths)) as advance:
            advance(first)
            for items in started(loader):
                records = np.array([_append(pixels, *item) for item in items], RECORD)
                for file, content in ((pixels, b""), (index, records.tobytes())):
                    file.write(content)  # a record stands for pixels that are safely there
                    file.flush()
                    os.fsync(file.fileno())
                advance(len(items))
    return np.fromfile(out / "index.part", RECORD)


def _recover(out: Path, pixels: BinaryIO, index: BinaryIO) -> np.ndarray:
    """What an earlier attempt finished; what it left half-written is cut off."""
    whole = index.seek(0, os.SEEK_END) // RECORD.itemsize
    done = np.fromfile(out / "index.part", RECORD, count=whole)
    length = int(_lengths(done).sum())
    if pixels.seek(0, os.SEEK_END) < length:
        raise RunFailed(f"{out} is damaged: pixels.part is too short; delete the folder and pack again")
    pixels.truncate(length)
    index.truncate(whole * RECORD.itemsize)
    return done


def _append(pixels: BinaryIO, row: int, image: np.ndarray | str) -> tuple[int, int, int, int]:
    if isinstance(image, str):
        say(f"left out, cannot be decoded: {image}")
        return row, 0, 0, 0
    pixels.write(image.data)
    return row, image.shape[0], image.shape[2], zlib.crc32(image.data)


def _lengths(records: np.ndarray) -> np.ndarray:
    return 3 * records["height"].astype(np.int64) * records["width"]


def _finish(out: Path, plan: dict[str, Any], folders: dict[str, FolderImages], root: Path, records: np.ndarray) -> None:
    """Write the index and give the pixels their name: from here on it is a pack."""
    good = records["height"] > 0
    offsets = np.cumsum(_lengths(records)) - _lengths(records)
    counts, start = {}, 0
    for name, part in folders.items():
        counts[name] = int(good[start : start + len(part)].sum())
        start += len(part)
    if not counts["train"]:
        raise RequestError("none of the training images can be decoded")
    parts = list(folders.values())
    arrays: dict[str, Any] = {
        "offsets": offsets[good], "heights": records["height"][good], "widths": records["width"][good],
        "crcs": records["crc"][good],
        "names": np.array([os.fsencode(os.path.relpath(path, root)) for part in parts for path in part.paths])[good],
    }  # fmt: skip
    if all(part.labels is not None for part in parts):
        arrays["labels"] = np.concatenate([part.labels.numpy() for part in parts if part.labels is not None])[good]
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    content = buffer.getvalue()
    write_atomically(out / "index.npz", content)
    os.replace(out / "pixels.part", out / "pixels.bin")
    about = {
        "format": FORMAT, "short_side": plan["short_side"], "parts": counts, "classes": parts[0].classes,
        "bytes": int(_lengths(records).sum()), "index": hashlib.sha256(content).hexdigest(),
    }  # fmt: skip
    write_atomically(out / "pack.json", json.dumps(about, indent=2) + "\n")
    for name in ("index.part", "plan.json", "lock"):
        (out / name).unlink(missing_ok=True)


# ---------------------------------------------------------------------------------------------------------------
# Reading


def open_pack(folder: Path, labels: str = "auto") -> Data:
    """Open a finished pack; its index is checked, its pixels are left where they are until they are needed."""
    about, arrays = _read_index(folder)
    pixels = np.asarray(np.memmap(folder / "pixels.bin", np.uint8, "r"))  # a plain view: indexing it is quicker
    given = torch.from_numpy(arrays["labels"]) if "labels" in arrays and labels != "none" else None
    whole = PackedImages(
        pixels,
        torch.from_numpy(arrays["offsets"]),
        torch.from_numpy(np.stack([arrays["heights"], arrays["widths"]], 1).astype(np.int64)),
        about["index"],
        [Path(os.fsdecode(name)) for name in arrays["names"].tolist()],
        given,
        about["classes"] if given is not None else [],
    )
    if labels == "folders" and given is None:
        raise RequestError(f"{folder} was packed without labels; pack it again with --labels folders")
    parts, start = {}, 0
    for name, count in about["parts"].items():
        parts[name] = whole.select(torch.arange(start, start + count))
        start += count
    data = Data(folder.resolve().stem, parts["train"], parts.get("test"))
    return dataclasses.replace(data, held_out=parts.get("validation"))


def _read_index(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    if not (folder / "pack.json").is_file():
        raise RequestError(f"the pack {folder} is not finished; run the same effssl pack again")
    try:
        about = json.loads((folder / "pack.json").read_text())
        content = (folder / "index.npz").read_bytes()
        size = (folder / "pixels.bin").stat().st_size
        if about["format"] != FORMAT:
            raise RequestError(f"{folder} has the format {about['format']!r}; this effssl reads {FORMAT!r}")
        if hashlib.sha256(content).hexdigest() != about["index"] or size != about["bytes"]:
            raise RequestError(f"the pack {folder} is damaged (its checksum or size does not fit); pack it again")
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return about, dict(file)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"the pack {folder} cannot be read ({error}); pack it again") from None


def check_pack(folder: Path) -> Iterator[str]:
    """Read all pixels; names of the images whose checksum does not fit."""
    _, arrays = _read_index(folder)
    pixels = np.memmap(folder / "pixels.bin", np.uint8, "r")
    lengths = 3 * arrays["heights"].astype(np.int64) * arrays["widths"]
    with counter("checking images", len(lengths)) as advance:
        columns = (arrays[key].tolist() for key in ("offsets", "crcs", "names"))
        for length, start, crc, name in zip(lengths.tolist(), *columns, strict=True):
            if zlib.crc32(pixels[start : start + length].data) != crc:
                yield os.fsdecode(name)
            advance(1)
