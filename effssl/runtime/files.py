"""Files that survive a crash and are safe with several processes."""

from __future__ import annotations

import glob
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from effssl.runtime.errors import RequestError
from effssl.runtime.reading import check_regular

PARTIAL = ".partial"  # suffix of a file that is being written


@contextmanager
def atomic_path(path: Path, new: bool = False) -> Iterator[Path]:
    """A temporary path in the same folder for the block to write; synced and renamed to `path` at its end.

    A reader sees the old file or the new one, never half of it. With `new`, the file must not exist yet: of two
    processes that create it, one gets a FileExistsError.
    """
    check_replaceable(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    temporary.unlink(missing_ok=True)  # a killed process may have had the same id
    try:
        yield temporary
        _sync(temporary)
        if new:
            _link(temporary, path)  # unlike a rename, this fails if another process was faster
        else:
            os.replace(temporary, path)
        _sync(path.parent)  # the new name must survive a power cut, too
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes, new: bool = False) -> None:
    """Write a file as a whole: a reader sees the old file or the new one."""
    with atomic_path(path, new) as temporary:
        write_synced(temporary, content)


def write_synced(path: Path, content: str | bytes) -> None:
    """Write a file and wait until it is on the disk."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    _sync(path)


def link_atomically(source: Path, target: Path) -> None:
    """Make `target` a hard link to `source` (a copy where the file system has no links), replacing what was there."""
    with atomic_path(target) as temporary:
        _link(source, temporary)


def is_leftover(path: Path) -> bool:
    """Whether a file is the temporary file of a process that was killed while writing."""
    return path.name.startswith(".") and path.name.endswith(PARTIAL)


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Remove the temporary files of killed processes, of all files or of one; call it while holding their lock."""
    for leftover in folder.glob(f".{glob.escape(name)}.*{PARTIAL}" if name else f".*{PARTIAL}"):
        leftover.unlink(missing_ok=True)


def _link(source: Path, target: Path) -> None:
    """Hard-link a file to a name that must be free, or copy it where the file system has no links."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        with target.open("xb") as file:
            file.write(source.read_bytes())
            os.fsync(file.fileno())


def _sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_name(path: Path) -> None:
    if "\0" in str(path):
        raise RequestError(f"{str(path)!r} cannot be the name of a file: it has a null character; choose another --out")


def check_replaceable(path: Path) -> None:
    """Refuse to put a file in the place of a device, a pipe, a folder or a broken link."""
    _check_name(path)
    if os.path.lexists(path) and not path.is_file():
        raise RequestError(f"{path} is not a regular file and is not replaced; choose another --out")


def check_output(path: Path, overwrite: bool, instead: str = "choose another --out, or add --overwrite") -> None:
    """Refuse a file that cannot be written or, without `overwrite`, one that exists; `instead` says what to do."""
    _check_name(path)
    if path.is_dir() or not path.parent.is_dir():
        raise RequestError(f"{path} cannot be written; --out names a file in an existing folder")
    check_writable(path.parent)
    check_replaceable(path)
    if path.exists() and not overwrite:
        raise RequestError(f"{path} exists; {instead}")


def check_writable(folder: Path) -> None:
    """Refuse a folder in which files cannot be created, or that cannot be created itself; it leaves nothing behind."""
    _check_name(folder)
    existing = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))
    try:
        with tempfile.TemporaryFile(dir=existing):  # permissions are not enough: a read-only disk, /proc
            pass
    except OSError as error:
        reason = "" if existing == folder else f"{folder} cannot be created: "
        raise RequestError(f"{reason}{existing} is not writable ({error.strerror})") from None


def resolve_path(text: str) -> str:
    """The absolute path of an existing file or folder; any other text unchanged."""
    path = Path(text).expanduser()
    return str(path.resolve()) if path.exists() else text


@contextmanager
def locked(path: Path, busy: str, instead: str, wait: float = 0.0) -> Iterator[None]:
    """Hold a lock file; if another process still holds it after `wait` seconds, raise "`busy` by …, or `instead`"."""
    import fcntl

    deadline = time.monotonic() + wait
    if os.path.lexists(path):
        check_regular(path)
    with path.open("a+", errors="replace") as file:  # whatever it holds, it is only shown
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released with the process, however that ends
                break
            except OSError:
                if time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise RequestError(f"{busy} by {holder}; wait for it, or {instead}") from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}, started by {os.getppid()}\n")
        file.flush()
        yield
