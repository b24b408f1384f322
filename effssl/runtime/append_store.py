"""Long jobs that append records to a folder and, killed at any moment, resume to the same bytes.

A job holds its folder by `claim_folder`, which compares plan.json (what the job computes) with that of the earlier
attempt, and appends to an `AppendStore`: a data file of any bytes, and an index file with one record per item.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.files import locked, remove_leftovers, write_atomically
from effssl.runtime.reading import check_regular, read_json, read_start

PLAN, LOCK = "plan.json", "lock"


@contextmanager
def claim_folder(folder: Path, plan: Mapping[str, Any], differs: str, discard: Sequence[str] = ()) -> Iterator[None]:
    """Hold the folder of a job during the block: a new folder, or one of an earlier attempt with the same plan.

    A folder of anything else is refused, and so is another plan, with the message `differs`, unless the files of that
    attempt are named in `discard`: then they are deleted and the job starts from the beginning.
    """
    if not _is_free(folder, plan["format"]):
        raise RequestError(f"{folder} exists and holds other files; choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        remove_leftovers(folder)
        stored = folder / PLAN
        if stored.is_file() and _stored_plan(stored) != plan:
            if not discard:
                raise RequestError(f"{folder} {differs}")
            for name in discard:
                (folder / name).unlink(missing_ok=True)
        write_atomically(stored, json.dumps(plan))
        yield


def _stored_plan(path: Path) -> Any:
    try:
        return read_json(path)
    except (OSError, ValueError):  # damaged: not the plan of this job
        return None


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a job's folder; another process that holds it is an error."""
    with locked(folder / LOCK, f"{folder} is being written", "choose another --out"):
        yield


def has_plan(folder: Path, format: str) -> bool:
    """Whether an earlier attempt of a job with this format left its plan in a folder."""
    return format.encode() in read_start(folder / PLAN, 200)


def _is_free(folder: Path, format: str) -> bool:
    """Whether a folder is missing, empty, or left by an earlier attempt."""
    if not folder.exists():
        return True
    return folder.is_dir() and (has_plan(folder, format) or {path.name for path in folder.iterdir()} <= {LOCK})


class AppendStore:
    """A data file and an index file with one record per item; only complete items survive a crash.

    An item's data are on the disk before its record is: whatever follows the last record is cut off when the store is
    opened again.

    Args:
        data: file of the items' bytes, one item after another
        index: file of the records
        dtype: type of a record
        nbytes: bytes in the data file of the items of an array of records
    """

    def __init__(self, data: Path, index: Path, dtype: np.dtype, nbytes: Callable[[np.ndarray], int]) -> None:
        self.data, self.index, self.dtype, self.nbytes = data, index, dtype, nbytes
        self._files: list[BinaryIO] = []
        self._exit = ExitStack()

    def __enter__(self) -> AppendStore:
        for path in (self.data, self.index):
            if os.path.lexists(path):
                check_regular(path)
        self._files = [self._exit.enter_context(path.open("ab")) for path in (self.data, self.index)]
        try:
            self.truncate(len(self.records()))
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._exit.close()

    def records(self) -> np.ndarray:
        """The records of all complete items."""
        return np.fromfile(self.index, self.dtype, count=self.index.stat().st_size // self.dtype.itemsize)

    def truncate(self, count: int) -> None:
        """Keep only the first `count` items."""
        data, index = self._files
        length = self.nbytes(self.records()[:count])
        if self.data.stat().st_size < length:
            raise RunFailed(f"{self.data.parent} is damaged: {self.data.name} is too short; delete the folder")
        data.truncate(length)
        index.truncate(count * self.dtype.itemsize)

    def append(self, items: Iterable[np.ndarray], records: np.ndarray) -> None:
        """Append the data of some items and then their records; both are on the disk when this returns."""
        data, index = self._files
        for item in items:
            data.write(np.ascontiguousarray(item).data)
        _sync(data)
        index.write(np.ascontiguousarray(records, self.dtype).data)
        _sync(index)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
