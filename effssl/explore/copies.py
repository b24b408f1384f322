"""Copies of some images in another folder, with the sub-folders they are in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from effssl.explore.gallery import real_path, unescaped
from effssl.explore.labels import Names
from effssl.runtime.errors import RequestError
from effssl.runtime.files import atomic_path, check_writable


def check_copies(folder: str | Path, overwrite: bool) -> Path:
    """Refuse a folder that cannot be created or, without `overwrite`, one that holds something."""
    path = Path(folder).expanduser()
    if os.path.lexists(path) and not path.is_dir():
        raise RequestError(f"{path} is not a folder; choose another --copy-to")
    check_writable(path)
    if path.is_dir() and any(path.iterdir()) and not overwrite:
        raise RequestError(f"{path} is not empty; choose another --copy-to, or add --overwrite")
    return path


def copy_images(names: Sequence[str], folder: Path, data: str | Path | None = None) -> None:
    """Copy image files, with their paths below the folder of the data, or below the one that they have in common."""
    missing = [name for name in names if not real_path(name).is_file()]
    if missing:
        raise RequestError(f"{len(missing)} of {len(names)} images are no files that can be copied, first {missing[0]}")
    known = Names.of(names, data)
    for name in names:
        source, relative = real_path(name), known.relative(name)
        target = folder / (relative if str(source) == name else unescaped(relative))
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.abspath(target) != str(source):  # overwriting in the folder that they come from
            with atomic_path(target) as temporary:
                shutil.copy2(source, temporary)
