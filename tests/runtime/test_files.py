"""Files are replaced as a whole, whatever happens while they are written, and locks keep processes apart."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import effssl
from effssl.runtime.errors import RequestError
from effssl.runtime.files import (
    atomic_path,
    check_output,
    check_writable,
    link_atomically,
    locked,
    remove_leftovers,
    resolve_path,
    write_atomically,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "scores.json"
    write_atomically(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write_atomically(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["scores.json"]


def test_an_exception_in_the_block_discards_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "features.npz"

    def interrupted() -> None:
        with atomic_path(path) as temporary:
            temporary.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == []


def test_the_file_appears_only_at_the_end_of_the_block(tmp_path: Path) -> None:
    path = tmp_path / "features.npz"
    with atomic_path(path) as temporary:
        temporary.write_bytes(b"whole")
        assert temporary.parent == path.parent  # a rename does not cross file systems
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    assert names(tmp_path) == ["features.npz"]


def test_a_new_file_must_not_exist(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    write_atomically(path, "first", new=True)
    with pytest.raises(FileExistsError):
        write_atomically(path, "second", new=True)
    assert path.read_text() == "first"
    assert names(tmp_path) == ["config.yaml"]


@pytest.mark.parametrize("links", [True, False])
def test_a_link_replaces_its_target_and_outlives_its_source(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "new", tmp_path / "kept"
    source.write_text("new")
    target.write_text("old")
    if not links:

        def refused(source: Path, target: Path) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(os, "link", refused)
    link_atomically(source, target)
    write_atomically(source, "newer")
    assert target.read_text() == "new"
    assert names(tmp_path) == ["kept", "new"]


def test_leftovers_of_killed_processes_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("a.npz", ".a.npz.17.partial", ".b[1].npz.17.partial", ".hidden"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path, "b[1].npz")
    assert names(tmp_path) == [".a.npz.17.partial", ".hidden", "a.npz"]
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [".hidden", "a.npz"]


def test_output_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    check_output(tmp_path / "new.csv", overwrite=False)
    (tmp_path / "old.csv").touch()
    check_output(tmp_path / "old.csv", overwrite=True)
    for path, reason in [
        (tmp_path / "old.csv", "old.csv exists; choose another out=, or add overwrite=True"),
        (tmp_path / "no/where.csv", "in an existing folder"),
        (tmp_path, "in an existing folder"),
    ]:
        with pytest.raises(RequestError, match=reason):
            check_output(path, overwrite=False)
    assert names(tmp_path) == ["old.csv"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder that even root cannot write to")
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/null"), Path.mkdir])
def test_only_regular_files_are_replaced(tmp_path: Path, make) -> None:
    path = tmp_path / "out"
    make(path)
    before = os.lstat(path)
    with pytest.raises(RequestError, match=r"not a regular file|cannot be written"):
        check_output(path, overwrite=True)
    with pytest.raises(RequestError, match="not a regular file"):
        write_atomically(path, "text")
    assert os.lstat(path) == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_writable_is_refused(tmp_path: Path) -> None:
    check_writable(tmp_path / "not/there/yet")
    assert names(tmp_path) == []
    with pytest.raises(RequestError, match=r"^/proc/x/y cannot be created: /proc is not writable \("):
        check_writable(Path("/proc/x/y"))


def test_existing_paths_become_absolute_and_names_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    assert resolve_path("photos") == str((tmp_path / "photos").resolve())
    assert resolve_path("cifar10") == "cifar10"


HOLD = """
import sys, time
from pathlib import Path
from effssl.runtime.files import locked
with locked(Path(sys.argv[1]), "busy", "leave"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_keeps_others_out_until_its_process_is_gone(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with (
        pytest.raises(RequestError, match=rf"^busy by process {holder.pid} on .*; wait for it, or leave$"),
        locked(lock, "busy", "leave"),
    ):
        pass
    holder.kill()
    holder.communicate()
    start = time.monotonic()
    with locked(lock, "busy", "leave", wait=30):
        assert time.monotonic() - start < 10
        with pytest.raises(RequestError, match=f"process {os.getpid()}"), locked(lock, "busy", "leave", wait=0.1):
            pass


def test_a_name_with_a_null_character_is_refused(in_tmp: Path) -> None:
    with pytest.raises(RequestError, match="null character"):
        check_output(Path("a\0b"), overwrite=True)
    with pytest.raises(RequestError, match="null character"):
        check_writable(Path("a\0b/c"))
    with pytest.raises(RequestError, match="null character"):
        write_atomically(Path("a\0b"), "x")
    with pytest.raises(RequestError, match="null character"):
        effssl.pretrain("digits", out="a\0b", epochs=1, quiet=True)


def test_what_can_be_done_about_a_file_that_exists(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(RequestError, match=r"a exists; delete it first$"):
        check_output(tmp_path / "a", overwrite=False, instead="delete it first")
