"""A zip or tar file of images, laid out inside as a folder of images is."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from effssl.data.archive import ArchiveImages, Members, find_images, read_members
from effssl.data.dataset import Data
from effssl.data.formats import SUFFIXES
from effssl.data.parts import SPLITS, divide
from effssl.runtime.errors import RequestError

ARCHIVES = (".zip", ".tar")
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".7z", ".rar")


def is_archive(spec: str) -> bool:
    """Whether a name is that of an archive."""
    return spec.lower().endswith((*ARCHIVES, *COMPRESSED)) and not Path(spec).expanduser().is_dir()


def open_archive(spec: str, labels: str = "auto") -> Data:
    """Open a zip or tar file; folders inside it are labels where those of a folder of images would be."""
    path = Path(os.path.abspath(Path(spec).expanduser()))
    if not path.exists():
        raise RequestError(f"no such file: {path}")
    if spec.lower().endswith(COMPRESSED):
        raise RequestError(
            f"{path} cannot be read in place: unpack it into a folder, or make it a .zip or a plain .tar"
        )
    unreadable: list[str] = []
    members = read_members([path], SUFFIXES, unreadable)
    if not len(members):
        hint = f"; {unreadable[0]} cannot be used" if unreadable else ""
        raise RequestError(f"no images in {path} (looked for {' '.join(SUFFIXES)}){hint}")
    images, _ = find_images(members, unreadable)
    return divide_folders(path.stem, images, labels, unreadable)


def divide_folders(name: str, images: ArchiveImages[Members], labels: str, unreadable: list[str]) -> Data:
    """train/ beside val/ or test/ splits an archive, and then sub-folders are labels; else on request."""
    places = [images.members.inside(row).parts for row in range(len(images))]
    top, depth = places[0][0], min(map(len, places))
    enclosed = depth > (2 if labels == "folders" else 1) and all(place[0] == top for place in places)
    if enclosed and top not in SPLITS:  # photos.zip holds photos/…
        places = [place[1:] for place in places]
    tops = {SPLITS.get(place[0]) for place in places if len(place) > 1}
    if "train" not in tops or not tops & {"test", "val"}:
        return divide(name, images, _classes(name, places) if labels == "folders" else None, None, unreadable)
    inside = [row for row, place in enumerate(places) if place[0] in SPLITS and len(place) > 1]
    below = [places[row][1:] for row in inside]
    loose = any(len(place) == 1 for place in below)
    with_labels = labels == "folders" or (labels == "auto" and not loose)
    chosen = images.select(torch.tensor(inside))
    splits = [places[row][0] for row in inside]
    return divide(name, chosen, _classes(name, below) if with_labels else None, splits, unreadable)


def _classes(name: str, places: list[tuple[str, ...]]) -> list[str]:
    loose = next((place for place in places if len(place) == 1), None)
    if loose:
        raise RequestError(f"folders inside {name} are labels, but {loose[0]} lies outside of any of them")
    return [place[0] for place in places]
