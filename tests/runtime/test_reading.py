"""Files that anybody may have written, and what is said of them."""

from __future__ import annotations

import os
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import effssl
from effssl.data.decoding import MOST_WORKERS, worker_count
from effssl.explore.feature_files import read_metadata
from effssl.network.foreign import read_weights
from effssl.runtime import reading
from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.files import locked
from effssl.runtime.reading import read_arrays, read_start
from tests.mutations import BOMB, write_zeros


@pytest.mark.parametrize("kind", [RequestError, RunFailed])
def test_an_error_is_one_line_whatever_it_repeats(kind: type[Exception]) -> None:
    assert str(kind("no column label; found: a\nb\r\nc")) == "no column label; found: a b c"
    assert len(str(kind("x" * 100_000))) <= 2000


def test_few_bytes_that_would_fill_the_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", images=np.zeros((1000, 32, 32, 3), np.uint8))
    assert read_arrays(tmp_path / "bomb.npz")["images"].shape == (1000, 32, 32, 3)
    monkeypatch.setattr(reading, "MEMORY", 1 << 20)
    with pytest.raises(ValueError, match="more than 100 times as many"):
        read_arrays(tmp_path / "bomb.npz")


def test_the_start_of_what_is_no_file_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"abc")
    assert read_start(tmp_path / "file", 2) == b"ab"
    assert (
        read_start(tmp_path / "a\0b", 2)
        == read_start(tmp_path / "pipe", 2)
        == read_start(tmp_path / "none", 2)
        == read_start(tmp_path, 2)
        == b""
    )


def test_text_of_characters_that_there_are_none_is_refused(tmp_path: Path) -> None:
    names = np.array(["a", "b"])
    np.savez(tmp_path / "good.npz", names=names, swapped=names.astype(names.dtype.newbyteorder()))
    assert read_arrays(tmp_path / "good.npz")["swapped"].tolist() == ["a", "b"]
    np.savez(tmp_path / "bad.npz", names=np.array([1 << 30, 97], np.uint32).view("U1"))
    with pytest.raises(ValueError, match="characters that there are none"):
        read_arrays(tmp_path / "bad.npz")


def test_a_lock_may_hold_anything(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"\xff\xfe")
    with locked(tmp_path / "lock", "busy", "wait"):
        (tmp_path / "lock").write_bytes(b"\xff\xfe\n")
        with (
            pytest.raises(RequestError, match=r"^busy by .*; wait for it, or wait$"),
            locked(tmp_path / "lock", "busy", "wait"),
        ):
            pass


def test_worker_processes_have_a_limit() -> None:
    assert worker_count(MOST_WORKERS) == MOST_WORKERS
    with pytest.raises(RequestError, match="at most 1024"):
        worker_count(10**400)


@pytest.mark.parametrize("read", [effssl.outliers, read_metadata])
def test_feature_files_that_would_fill_the_memory_are_refused(read: Callable[..., object], tmp_path: Path) -> None:
    path = tmp_path / "f.npz"
    np.savez(path, path=np.array(["a", "b"]), metadata=np.array("{}"))
    with zipfile.ZipFile(path, "a") as archive:
        write_zeros(archive, "features.npy", BOMB)
    assert path.stat().st_size < 4 << 20
    tracemalloc.start()
    try:
        if read is read_metadata:
            assert read(path) is None
        else:
            with pytest.raises(RequestError, match="more than 100 times as many"):
                read(features=path)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_weights_and_images_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(3)}, tmp_path / "w.pth")
    with zipfile.ZipFile(tmp_path / "w.pth", "a") as archive:
        write_zeros(archive, "archive/data/1", BOMB)
    with pytest.raises(RequestError, match="more than 100 times as many"):
        read_weights(tmp_path / "w.pth")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(3):
            write_zeros(archive, f"{number}.png", BOMB // 3)
    with pytest.raises(RequestError, match="more than 100 times as many"):
        effssl.open_data(str(tmp_path / "a.zip"))


def test_a_weight_file_with_a_damaged_directory_is_refused(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(3)}, tmp_path / "w.pth")
    content = bytearray((tmp_path / "w.pth").read_bytes())
    directory = content.rindex(b"PK\x01\x02")
    content[directory + 28 : directory + 32] = b"\x00\x00\xff\x7f"  # no name, and an extra field beyond the end
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(RequestError, match="is not a weight file"):
        read_weights(tmp_path / "w.pth")
