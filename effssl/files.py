"""Files that survive a crash and two processes at once."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from effssl.errors import RequestError


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside, sync, rename: a reader sees the old file or the new one, never half of it."""
    with written_beside(path, content):
        pass


@contextmanager
def written_beside(path: Path, content: str | bytes) -> Iterator[None]:
    """Write a file beside `path` and sync it; after the block it takes `path`'s place."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        yield
        os.replace(beside, path)
        folder = os.open(path.parent, os.O_RDONLY)  # the new name must survive a power cut, too
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, busy: str, instead: str) -> Iterator[None]:
    """Hold a lock file; where another process has it, refuse: `busy` by whom, `instead` of waiting."""
    import fcntl

    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # gone with the process, however that ends
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise RequestError(f"{busy} by {holder}; wait for it, or {instead}") from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        yield
