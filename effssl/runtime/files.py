"""Files that survive a crash and two processes at once."""

from __future__ import annotations

import glob
import os
import platform
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from effssl.runtime.errors import RequestError

BESIDE = ".beside"  # how names of files end that are being written


def write_atomically(path: Path, content: str | bytes, new: bool = False) -> None:
    """Write beside, sync, rename: a reader sees the old file or the new one, never half of it.

    A `new` file must not be there yet: of two processes that make it, one gets a FileExistsError.
    """
    with written_beside(path, content, new):
        pass


@contextmanager
def written_beside(path: Path, content: str | bytes, new: bool = False) -> Iterator[None]:
    """Write a file beside `path` and sync it; after the block it takes `path`'s place."""
    with made_beside(path, new) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        _sync(beside)
        yield


@contextmanager
def made_beside(path: Path, new: bool = False) -> Iterator[Path]:
    """A name beside `path` for a file that the block makes; synced, it takes `path`'s place."""
    beside = path.with_name(f".{path.name}.{os.getpid()}{BESIDE}")
    try:
        yield beside
        _sync(beside)
        if new:
            _link(beside, path)  # unlike renaming, this fails if somebody was faster
        else:
            os.replace(beside, path)
        _sync(path.parent)  # the new name must survive a power cut, too
    finally:
        beside.unlink(missing_ok=True)


def check_output(path: Path, overwrite: bool) -> None:
    """Refuse a file that cannot be written or, unless told otherwise, one that is there already."""
    if path.is_dir() or not path.parent.is_dir():
        raise RequestError(f"{path} cannot be written; --out names a file in a folder that exists")
    check_room(path.parent)
    if os.path.lexists(path) and not overwrite:
        raise RequestError(f"{path} exists; choose another --out, or add --overwrite")


def check_room(folder: Path) -> None:
    """Refuse a folder that takes no files, or that cannot be made; it is tried, and nothing is left behind."""
    there = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    try:
        with tempfile.TemporaryFile(dir=there):  # permissions alone do not tell: a read-only disk, /proc
            pass
    except OSError as error:
        made = "" if there == folder else f"{folder} cannot be made: "
        raise RequestError(f"{made}{there} takes no files ({error.strerror})") from None


def without_places(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values, but of every path only the last name: where it lay is nobody's business.

    >>> without_places({"data": "/some/place/my pets", "epochs": 5})
    {'data': 'my pets', 'epochs': 5}
    """
    return {key: Path(value).name if isinstance(value, str) else value for key, value in values.items()}


def without_folders(text: str) -> str:
    """Names of files and folders in the name of a score, without where they lie.

    >>> without_folders("transfer@/some/place/my pets/all grid=5")
    'transfer@all grid=5'
    >>> without_folders("knn@/some/place@work/k=1/pets classes=/some/place/two.txt")
    'knn@pets classes=two.txt'
    """
    parts = re.split(r"(?= \w+=)|(?<=;)", text)
    return "".join(re.sub(r"^( ?[\w-]+[@=])?[^;]*/", r"\1", part) for part in parts)


def whole_path(text: str) -> str:
    """A file or folder by its whole path, which is the same from everywhere; what is neither stays as it is."""
    path = Path(text).expanduser()
    return str(path.resolve()) if path.exists() else text


def _sync(path: Path) -> None:
    """A file, or a folder's list of names, really is on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def keep_copy(path: Path, copy: Path) -> None:
    """Give a file a second name, in place of what had it; the file itself is there all the time."""
    beside = copy.with_name(f".{copy.name}.{os.getpid()}{BESIDE}")
    beside.unlink(missing_ok=True)
    _link(path, beside)
    os.replace(beside, copy)


def _link(path: Path, name: Path) -> None:
    """A second name for a file, which must be free; a copy where the file system knows no second names."""
    try:
        os.link(path, name)
    except FileExistsError:
        raise
    except OSError:
        with name.open("xb") as file:
            file.write(path.read_bytes())
            os.fsync(file.fileno())


def sweep(folder: Path, name: str = "") -> None:
    """Remove what a killed process left half-written, of all files or of one; for the one that holds their lock."""
    for left in folder.glob(f".{glob.escape(name)}.*{BESIDE}" if name else f".*{BESIDE}"):
        left.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, busy: str, instead: str, wait: float = 0.0) -> Iterator[None]:
    """Hold a lock file; where another process keeps it for `wait` seconds, refuse: `busy` by whom, what `instead`."""
    import fcntl

    until = time.monotonic() + wait
    with path.open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # gone with the process, however that ends
                break
            except OSError:
                if time.monotonic() < until:
                    time.sleep(0.05)
                    continue
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise RequestError(f"{busy} by {holder}; wait for it, or {instead}") from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}, started by {os.getppid()}\n")
        file.flush()
        yield
