"""The images that are explored and the encoder that looks at them."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from effssl.data import FolderImages, Images, PackedImages, open_data
from effssl.data.folder import TEST_NAMES, VALIDATION_NAMES, find_images
from effssl.data.sets import is_pack
from effssl.network.loaded import LoadedEncoder
from effssl.run import Run, load
from effssl.runtime.device import pick_device
from effssl.runtime.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Encoding(TypedDict, total=False):
    """How images become features, beside the run: what every function of `effssl.explore` can be told."""

    labels: str  # whether sub-folders are labels: auto only in a train/–val/ or train/–test/ layout, folders, none
    encoder: str  # architecture of a weight file that does not say so itself
    weights: str  # of an encoder that is given by name: default or random
    image_size: int  # side of the images a foreign encoder gets; 0 is its own
    device: str
    batch: int  # images at a time
    workers: int  # processes that decode; -1 is one per core


@dataclass(frozen=True)
class Gallery:
    """Images in order; each has a name: its path, or its number where there are no files."""

    parts: list[Images]
    names: list[str]
    labels: list[str | None] | None  # None where no image has one
    numbered: bool
    unreadable: list[str]  # files that are not even listed in the parts

    def __len__(self) -> int:
        return len(self.names)

    def fingerprint(self) -> str:
        """A short digest of all names, sizes and labels, and of when files were last changed."""
        digest = hashlib.blake2b(digest_size=8)
        for name in self.names:
            digest.update(f"{name}\n".encode())
        for path in (path for part in self.parts if isinstance(part, FolderImages) for path in part.paths):
            with suppress(OSError):  # gone by now: the decoder will say so
                about = path.stat()
                digest.update(f"{about.st_size} {about.st_mtime_ns}\n".encode())
        digest.update(json.dumps([self.labels, *(part.fingerprint() for part in self.parts)]).encode())
        return digest.hexdigest()


def open_gallery(data: str | Path, labels: str = "auto") -> Gallery:
    """All images of a folder, whatever its layout, or of another data set: those to train on, then those to test on."""
    if labels not in ("auto", "folders", "none"):
        raise RequestError(f"labels are auto, folders or none, not {labels!r}")
    path = Path(os.path.abspath(Path(data).expanduser()))  # features are used from other folders, too
    if str(data) and path.is_dir() and not is_pack(path):
        unreadable: list[str] = []
        # Never in memory, however small: many small images are large together, and a query is read from its file, too.
        images = find_images(path, unreadable)
        found = _labels(path, images.paths, labels)
        return Gallery([images], [printable(p) for p in images.paths], found, False, unreadable)
    opened = open_data(str(data), labels)
    parts = [part for part in (opened.train, opened.test, opened.held_out) if part is not None]
    packed = [path for part in parts if isinstance(part, PackedImages) for path in part.paths]
    names = [printable(path) for path in packed] or [str(i) for i in range(sum(map(len, parts)))]
    known: list[str | None] = [
        part.classes[i] for part in parts if part.labels is not None for i in part.labels.tolist()
    ]
    given = known if len(known) == len(names) and labels != "none" else None
    return Gallery(parts, names, given, not packed, opened.unreadable)


def printable(path: Path | str) -> str:
    """A path as text that any file or screen takes, even where its bytes are no text."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _labels(root: Path, paths: Sequence[Path], labels: str) -> list[str | None] | None:
    """The folder below the root is the label, or the one below train/ and its neighbors; None where there is none."""
    below = [path.relative_to(root).parts[:-1] for path in paths]
    if labels == "folders":
        loose = next((path for path, folders in zip(paths, below, strict=True) if not folders), None)
        if loose:
            raise RequestError(f"sub-folders of {root} are labels, but {loose.name} lies outside of any sub-folder")
        return [folders[0] for folders in below]
    splits = ("train", *TEST_NAMES, *VALIDATION_NAMES)
    inside = [folders for folders in below if folders and folders[0] in splits]
    split = {folders[0] for folders in inside} - {"train"} and any(folders[0] == "train" for folders in inside)
    if labels == "none" or not split or any(len(folders) < 2 for folders in inside):
        return None
    return [folders[1] if folders and folders[0] in splits else None for folders in below]


def open_encoder(run: str | Path | Run | LoadedEncoder, how: Encoding) -> LoadedEncoder:
    """An encoder from anything that leads to one, on its device."""
    if isinstance(run, (Run, LoadedEncoder)):
        loaded = run.encoder() if isinstance(run, Run) else run
    elif not str(run):
        raise RequestError("which encoder? a run folder, a weight file, a torchvision model or timm:<name>")
    else:
        loaded = load(run, how.get("encoder", ""), how.get("weights", "default"), how.get("image_size", 0))
    return loaded.to(pick_device(how.get("device", "auto")))


def encoder_digest(encoder: LoadedEncoder) -> str:
    """A short digest of an encoder's weights and of how it looks at images."""
    look = [encoder.size, encoder.share, encoder.filter, list(encoder.about["mean"]), list(encoder.about["std"])]
    return hashlib.blake2b(f"{encoder.fingerprint()} {json.dumps(look)}".encode(), digest_size=8).hexdigest()
