"""The registered sources of images. A new one is a file like `arrays.py` and a line in `SOURCES`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from effssl.data.archive_folder import is_archive, open_archive
from effssl.data.arrays import is_array_file, open_arrays
from effssl.data.cifar import open_cifar
from effssl.data.dataset import Data
from effssl.data.digits import open_digits
from effssl.data.folder import is_folder, open_folder
from effssl.data.hub import absolute_hub, is_hub, open_hub
from effssl.data.joined import join
from effssl.data.pack import is_pack, open_pack
from effssl.data.table import is_table, open_table
from effssl.data.video import is_video, open_video
from effssl.data.webdataset import is_shards, open_shards
from effssl.runtime.errors import RequestError, did_you_mean
from effssl.several import WeightedSet, join_sets, split_sets

NAMED = ("cifar10", "cifar100", "digits")
FILES = (
    "a pack, a table (.csv, .parquet), an archive (.zip, .tar), WebDataset shards, a video, hf:<folder or name> or a "
    ".npy/.npz file"
)


def absolute_path(spec: str) -> str:
    """A path that means the same from every working folder."""
    path = Path(spec).expanduser()
    # A link to a file keeps its name: the suffix says what the file is, and a table's paths begin at its folder.
    return str(path.resolve() if path.is_dir() else os.path.abspath(path))


def as_it_is(spec: str) -> str:
    """A name that means the same everywhere."""
    return spec


@dataclass(frozen=True)
class Source:
    """A kind of data set: which values of --data it can open, and how."""

    accepts: Callable[[str], bool]
    open: Callable[..., Data]  # (spec, labels)
    absolute: Callable[[str], str] = absolute_path  # the same value, as it means the same from every working folder
    by_class: bool = False  # its opener also takes `classes`, the class folders to read
    encoded: bool = False  # its images are files, which `effssl pack` decodes


SOURCES = (  # the first one that accepts a value opens it
    Source(lambda spec: spec == "digits", open_digits, as_it_is),
    Source(lambda spec: spec in ("cifar10", "cifar100"), open_cifar, as_it_is),
    Source(is_hub, open_hub, absolute_hub, encoded=True),
    Source(is_array_file, open_arrays),
    Source(is_pack, open_pack),
    Source(is_table, open_table, encoded=True),
    Source(is_video, open_video, encoded=True),
    Source(is_shards, open_shards, encoded=True),
    Source(is_archive, open_archive, encoded=True),
    Source(is_folder, open_folder, by_class=True, encoded=True),
)


def absolute(spec: str) -> str:
    """A value of --data that means the same from every working folder."""
    sets = split_sets(spec)
    if len(sets) > 1:
        return join_sets(WeightedSet(absolute(one.spec), one.weight) for one in sets)
    source = find_source(spec)
    return source.absolute(spec) if source is not None else absolute_path(spec)


def find_source(spec: str) -> Source | None:
    """The source that opens a value of --data."""
    return next((source for source in SOURCES if source.accepts(spec)), None)


def open_data(spec: str, labels: str = "auto", subset: int = 0, classes: str = "") -> Data:
    """Open a data set by name or path, or several as "photos + 2*scans": training images, and test images if any.

    >>> data = open_data("digits")
    >>> len(data.train), len(data.test), data.train.classes[3]
    (1437, 360, '3')
    """
    sets = split_sets(spec)
    if len(sets) > 1:
        data = join(
            [_open_one(one.spec, labels, classes) for one in sets],
            [absolute(one.spec) for one in sets],
            [one.weight for one in sets],
        )
    else:
        data = _open_one(spec, labels, classes)
    return data.with_subset(subset) if subset else data


def _open_one(spec: str, labels: str, classes: str) -> Data:
    if not spec:
        raise RequestError(f"--data is needed: {', '.join(NAMED)}, a folder of images, {FILES}")
    source = find_source(spec)
    if source is None:
        if Path(spec).expanduser().exists():
            raise RequestError(f"{spec} is neither a folder of images nor {FILES}")
        hint = did_you_mean(spec, NAMED)
        raise RequestError(f"no data set or folder named {spec!r}{hint}; known sets: {', '.join(NAMED)}")
    if classes and not source.by_class:
        raise RequestError(f"--classes selects sub-folders; {spec} is not a folder")
    return source.open(spec, labels, classes) if source.by_class else source.open(spec, labels)
