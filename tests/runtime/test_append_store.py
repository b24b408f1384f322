"""Killed at any moment, an append store resumes to the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from effssl.runtime.append_store import AppendStore, claim_folder, has_plan
from effssl.runtime.errors import RequestError, RunFailed

LENGTH = np.dtype("<u4")
PLAN = {"format": "some job 1", "items": 9}


def open_store(folder: Path) -> AppendStore:
    """Items of any number of bytes; a record is an item's length."""
    return AppendStore(folder / "data.part", folder / "index.part", LENGTH, lambda records: int(records.sum()))


def item(number: int) -> np.ndarray:
    return np.full(3 * number % 11, number, np.uint8)


def write(folder: Path, end: int, together: int = 2) -> int:
    """Append items up to `end`, a few at a time; where it started."""
    with open_store(folder) as store:
        first = len(store.records())
        for start in range(first, end, together):
            items = [item(number) for number in range(start, min(start + together, end))]
            store.append(items, np.array([len(one) for one in items]))
    return first


def content(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in ("data.part", "index.part")]


@pytest.fixture
def whole(tmp_path: Path) -> list[bytes]:
    (tmp_path / "whole").mkdir()
    assert write(tmp_path / "whole", 9) == 0
    data, index = content(tmp_path / "whole")
    assert data == b"".join(item(number).tobytes() for number in range(9))
    assert len(index) == 9 * LENGTH.itemsize
    return [data, index]


def test_cut_off_anywhere_it_resumes_to_the_same_bytes(tmp_path: Path, whole: list[bytes]) -> None:
    """A kill leaves any amount of data after the last record, and any part of a record."""
    data, index = whole
    lengths = np.frombuffer(index, LENGTH)
    for cut in range(len(index) + 1):
        complete = cut // LENGTH.itemsize
        for extra in (b"", b"\xff", b"\xff" * 100):
            (tmp_path / "data.part").write_bytes(data[: lengths[:complete].sum()] + extra)
            (tmp_path / "index.part").write_bytes(index[:cut])
            assert write(tmp_path, 9) == complete
            assert content(tmp_path) == whole


@pytest.mark.skipif(sys.platform != "linux", reason="finds the name of an open file as Linux does")
def test_data_are_on_the_disk_before_their_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, real = [], os.fsync

    def watched(descriptor: int) -> None:
        real(descriptor)
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, *map(len, content(tmp_path))))

    monkeypatch.setattr(os, "fsync", watched)
    with open_store(tmp_path) as store:
        store.append([item(1), item(2)], np.array([3, 6]))
    assert synced == [("data.part", 9, 0), ("index.part", 9, 8)]


def test_missing_data_are_damage(tmp_path: Path, whole: list[bytes]) -> None:
    data, index = whole
    (tmp_path / "data.part").write_bytes(data[:-1])
    (tmp_path / "index.part").write_bytes(index)
    with pytest.raises(RunFailed, match=r"is damaged: data\.part is too short"):
        write(tmp_path, 9)
    assert content(tmp_path) == [data[:-1], index]


def test_items_can_be_dropped(tmp_path: Path, whole: list[bytes]) -> None:
    write(tmp_path, 9)
    with open_store(tmp_path) as store:
        store.truncate(4)
        assert store.records().tolist() == [len(item(number)) for number in range(4)]
    assert write(tmp_path, 9) == 4
    assert content(tmp_path) == whole


ENDLESS = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_append_store import write
write(Path(sys.argv[1]), 1_000_000)
"""


def test_a_killed_process_loses_no_record(tmp_path: Path) -> None:
    for folder in ("killed", "alone"):
        (tmp_path / folder).mkdir()
    index = tmp_path / "killed" / "index.part"
    for _ in range(3):
        before = index.stat().st_size if index.exists() else 0
        process = subprocess.Popen(
            [sys.executable, "-c", ENDLESS, str(tmp_path / "killed"), str(Path(__file__).parent)]
        )
        while not index.exists() or index.stat().st_size < before + 40:
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert index.stat().st_size >= before + 40
    end = index.stat().st_size // LENGTH.itemsize + 5
    write(tmp_path / "killed", end)
    write(tmp_path / "alone", end)
    assert content(tmp_path / "killed") == content(tmp_path / "alone")


def test_a_folder_is_claimed_by_one_plan_and_one_process(tmp_path: Path) -> None:
    folder = tmp_path / "job"

    def claim(plan: dict, discard: tuple[str, ...] = ()) -> set[str]:
        with claim_folder(folder, plan, "was begun otherwise", discard):
            assert has_plan(folder, "some job 1")
            with pytest.raises(RequestError, match="job is being written by process"), claim_folder(folder, plan, ""):
                pass
            return {path.name for path in folder.iterdir()}

    assert claim(PLAN) == {"plan.json", "lock"}
    (folder / "data.part").touch()
    (folder / ".plan.json.12345.partial").touch()
    assert claim(PLAN) == {"plan.json", "lock", "data.part"}
    with pytest.raises(RequestError, match="job was begun otherwise"):
        claim(PLAN | {"items": 10})
    assert claim(PLAN) == {"plan.json", "lock", "data.part"}
    assert claim(PLAN | {"items": 10}, ("data.part",)) == {"plan.json", "lock"}


def test_folders_of_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "only a lock").mkdir()
    (tmp_path / "only a lock/lock").touch()  # all that an attempt leaves that is killed at once
    for folder in (tmp_path, tmp_path / "notes.txt"):
        with (
            pytest.raises(RequestError, match="holds other files; choose another out="),
            claim_folder(folder, PLAN, "", ("notes.txt",)),
        ):
            pass
    with claim_folder(tmp_path / "only a lock", PLAN, ""):
        pass
    assert (tmp_path / "notes.txt").read_text() == "mine"
