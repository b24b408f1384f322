"""WebDataset shards: tar files with key.jpg and, of labelled images, key.cls or key.json beside it.

    shards/train-{0000..0003}.tar    numbers from 0000 to 0003
    "shards/*.tar"                   any pattern of the shell

Shards called train-… beside test-… or val-… split the set.
The index of large sets is kept in the data folder, so that shards are scanned once.
"""

from __future__ import annotations

import glob
import hashlib
import io
import json
import os
import re
import tarfile
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from effssl.augment.pixel_format import PixelFormat
from effssl.data.archive import MEMBER, ArchiveImages, Members, find_images, read_members
from effssl.data.cifar import data_folder
from effssl.data.dataset import Data
from effssl.data.formats import SUFFIXES
from effssl.data.parts import SPLITS, divide
from effssl.runtime.errors import RequestError
from effssl.runtime.files import write_atomically
from effssl.runtime.progress import say
from effssl.runtime.reading import describe, parse_json, read_arrays
from effssl.schema import build, to_dict

FORMAT = "effssl shards 2"
NUMBERS = re.compile(r"\{(\d+)\.\.(\d+)\}")
MOST_SHARDS = 100_000
LABEL_FILES = (".cls", ".json")
JSON_KEYS = ("label", "class", "cls")
KEPT_FROM = 10_000  # images from which an index is kept
FIRST = 16  # members that show whether a single tar is a shard


@dataclass(frozen=True)
class ShardIndex:
    """The images of shards, the label of each or None where there are none, and files that cannot be read."""

    images: ArchiveImages[Members]
    labels: list[str] | None
    unreadable: list[str]


def is_shards(spec: str) -> bool:
    """Whether a value is a pattern of tar files, or a tar file with a label beside an image."""
    path = Path(spec).expanduser()
    if not spec.endswith(".tar") or path.is_dir():
        return False
    return _is_shard(path) if path.is_file() else bool(NUMBERS.search(spec)) or glob.has_magic(spec)


def _is_shard(path: Path) -> bool:
    try:
        with tarfile.open(path, "r:") as tar:
            files = [split_key(member.name) for member in islice(tar, FIRST) if member.isreg()]
    except (tarfile.TarError, OSError, ValueError, EOFError):
        return False  # the opener of archives says what is wrong
    labelled = {key for key, suffix in files if suffix in LABEL_FILES}
    return any(suffix in SUFFIXES and key in labelled for key, suffix in files)


def split_key(name: str) -> tuple[str, str]:
    """The key of a file and its suffix, which begins with the first dot of its name.

    >>> split_key("train/n01.a/0001.seg.PNG")
    ('train/n01.a/0001', '.seg.png')
    """
    path = PurePosixPath(name)
    stem, dot, suffix = path.name.partition(".")
    return str(path.with_name(stem)) if stem else str(path), (dot + suffix).lower()


def open_shards(spec: str, labels: str = "auto") -> Data:
    """Open shards; their labels are used unless `labels` is none."""
    if labels == "folders":
        raise RequestError(f"--labels folders is for folders of images; labels of {spec} are its .cls or .json files")
    shards = find_shards(spec)
    index = _kept_index(shards)
    name = NUMBERS.sub("", Path(spec).stem).strip("*?-_. ") or "shards"
    splits = _splits(shards, index.images)
    return divide(name, index.images, None if labels == "none" else index.labels, splits, index.unreadable)


def _splits(shards: list[Path], images: ArchiveImages[Members]) -> list[str] | None:
    """The split of each image, where the first word of every shard's name is one and not all are the same."""
    words = [re.split(r"[^a-z]", path.name.lower())[0] for path in shards]
    if not all(word in SPLITS for word in words) or len({SPLITS[word] for word in words}) == 1:
        return None
    return [words[shard] for shard in images.members.table["archive"].tolist()]


def find_shards(spec: str) -> list[Path]:
    """The tar files of a pattern, in order; each of a range of numbers must be there."""
    text = os.path.abspath(os.path.expanduser(spec))
    if os.path.isfile(text):
        return [Path(text)]
    named = _numbered(text)
    shards = [path for name in named for path in (sorted(glob.glob(name)) if glob.has_magic(name) else [name])]
    missing = next((path for path in shards if not os.path.isfile(path)), None)
    if missing:
        raise RequestError(f"{spec}: there is no shard {missing}")
    if not shards:
        raise RequestError(f"no files match {spec}")
    return [Path(path) for path in shards]


def _numbered(text: str) -> list[str]:
    """The text once for each number of its first range, and of those after it."""
    found = NUMBERS.search(text)
    if found is None:
        return [text]
    first, last = int(found[1]), int(found[2])
    if not first <= last < first + MOST_SHARDS:
        raise RequestError(f"{found[0]} in {text} is no range of at most {MOST_SHARDS} numbers")
    ends = _numbered(text[found.end() :])
    width = len(found[1])
    return [f"{text[: found.start()]}{number:0{width}}{end}" for number in range(first, last + 1) for end in ends]


# ---------------------------------------------------------------------------------------------------------------
# The index


def build_index(shards: list[Path]) -> ShardIndex:
    """Scan all shards for images and their labels."""
    unreadable: list[str] = []
    files = read_members(shards, (*SUFFIXES, *LABEL_FILES), unreadable)
    keys = [split_key(os.fsdecode(name)) for name in files.names.tolist()]
    pictures = np.array([row for row, (_, suffix) in enumerate(keys) if suffix in SUFFIXES], np.int64)
    without = sorted(set(range(len(shards))) - set(files.table["archive"][pictures].tolist()))
    if without:
        raise RequestError(f"{shards[without[0]]} holds no images (looked for {' '.join(SUFFIXES)})")
    images, good = find_images(files.pick(pictures), unreadable)
    return ShardIndex(images, _read_labels(files, keys, pictures[good]), unreadable)


def _read_labels(files: Members, keys: list[tuple[str, str]], pictures: np.ndarray) -> list[str] | None:
    """The label of each image by the .cls file, else the .json file, with its key in the same shard."""
    shard = files.table["archive"].tolist()
    for kind in LABEL_FILES:
        beside = {(shard[row], key): row for row, (key, suffix) in enumerate(keys) if suffix == kind}
        rows = [beside.get((shard[row], keys[row][0])) for row in pictures.tolist()]
        labels = [None if row is None else _label(files, row, kind) for row in rows]
        found = sum(label is not None for label in labels)
        if found == len(labels):
            return [label for label in labels if label is not None]
        if found:
            bare = files.name(int(pictures[labels.index(None)]))
            raise RequestError(f"{found} of {len(labels)} images have a label in a {kind} file, but {bare} has none")
    return None


def _label(files: Members, row: int, kind: str) -> str | None:
    try:
        content = files.content(row)
        if kind == ".cls":
            return content.decode("utf-8").strip() or None
        fields = parse_json(content)
    except (OSError, ValueError) as error:
        raise RequestError(f"{files.name(row)} holds no label: {describe(error)}") from None
    values = [fields[key] for key in JSON_KEYS if key in fields] if isinstance(fields, dict) else []
    return str(values[0]) if values and isinstance(values[0], (str, int)) else None


def _kept_index(shards: list[Path]) -> ShardIndex:
    """The index of an earlier time if all shards have the same sizes and times, else a new one."""
    about = [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in shards]
    digest = hashlib.blake2b(json.dumps([FORMAT, SUFFIXES, about]).encode(), digest_size=12).hexdigest()
    path = data_folder() / "shards" / f"{digest}.npz"
    if path.is_file():
        with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged one is written again
            return _load_index(path, shards)
    index = build_index(shards)
    if len(index.images) >= KEPT_FROM:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, _dump_index(index))
        except OSError as error:
            say(f"the index of {len(shards)} shards is not kept: {path} cannot be written ({describe(error)})")
    return index


def _dump_index(index: ShardIndex) -> bytes:
    members, buffer = index.images.members, io.BytesIO()
    arrays = {"table": members.table, "names": members.names, "sizes": index.images.sizes.numpy()}
    arrays["pixels"] = np.array(json.dumps(to_dict(index.images.pixel_format)))
    arrays["unreadable"] = np.array([os.fsencode(name) for name in index.unreadable], "S")
    if index.labels is not None:
        arrays["labels"] = np.array([os.fsencode(label) for label in index.labels], "S")
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _load_index(path: Path, shards: list[Path]) -> ShardIndex:
    stored = read_arrays(path)
    table, names, sizes = stored["table"], stored["names"], stored["sizes"]
    labels = [os.fsdecode(label) for label in stored["labels"].tolist()] if "labels" in stored else None
    fits = table.dtype == MEMBER and names.shape == table.shape and sizes.shape == (len(table), 2)
    fits = fits and names.dtype.kind == "S" and sizes.dtype == np.int64
    if (
        not fits
        or not len(table)
        or sizes.min() < 1
        or table["archive"].max() >= len(shards)
        or (labels is not None and len(labels) != len(table))
    ):
        raise ValueError("its columns do not fit together")
    pixels = build(PixelFormat, parse_json(str(stored["pixels"])), str(path))
    images = ArchiveImages(Members(shards, table, names), torch.from_numpy(sizes), pixel_format=pixels)
    return ShardIndex(images, labels, [os.fsdecode(name) for name in stored["unreadable"].tolist()])
