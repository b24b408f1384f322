"""A long life: memory, processes and files of a run that goes on and on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

import effssl
from effssl.training import saving
from tests.chaos import ROOT

PHOTO = Image.fromarray(load_sample_image("flower.jpg"))


def resident() -> float:
    """Memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.long
def test_two_hundred_epochs_with_all_monitors_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, files = [], []
    real = saving.save_checkpoint

    def watched(path: Path, state: dict) -> None:
        real(path, state)
        seen.append(resident())
        files.append(len(os.listdir("/proc/self/fd")))

    monkeypatch.setattr(saving, "save_checkpoint", watched)
    health = {"snr": True, "every": 1}
    settings = {"epochs": 200, "batch_size": 64, "subset": 256, "quiet": True, "health": health, "encoder": "small"}
    effssl.pretrain("digits", "swav+rotation", out=tmp_path / "r", swav={"queue": 100, "queue_from": 0.0}, **settings)
    assert len(seen) == 200
    growth = seen[-1] / seen[40] - 1
    print(f"{seen[40]:.0f} MiB after 40 epochs, {seen[-1]:.0f} after 200: {100 * growth:+.2f} %")
    assert growth < 0.02
    assert files[-1] == files[40]


@pytest.fixture
def album(tmp_path: Path) -> Path:
    folder = tmp_path / "album"
    folder.mkdir()
    for i in range(16):
        PHOTO.crop((10 * i, 10 * i, 150 + 10 * i, 120 + 10 * i)).save(folder / f"{i}.jpg")
    return folder


def state(pid: str) -> str:
    """One letter: R running, S sleeping, Z dead but not yet buried; nothing for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except OSError:
        return ""


def shared_memory(pids: list[str]) -> list[str]:
    """Files in shared memory that carry the numbers of these processes."""
    return [name for name in os.listdir("/dev/shm") for pid in pids if name.startswith(f"torch_{pid}_")]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_outlives_its_run(album: Path, tmp_path: Path, number: signal.Signals) -> None:
    command = [
        sys.executable,
        "-m",
        "effssl",
        "pretrain",
        "--data",
        str(album),
        "--epochs",
        "1000",
        "--batch-size",
        "4",
    ]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(
        [*command, "--workers", "2", "--out", str(tmp_path / "r")], env=env, start_new_session=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not (tmp_path / "r" / "checkpoint.pt").exists():
        assert running.poll() is None
        time.sleep(0.05)

    def alive() -> list[str]:
        found = subprocess.run(["pgrep", "-s", str(running.pid)], capture_output=True, text=True, check=False)
        return [pid for pid in found.stdout.split() if state(pid) not in ("", "Z")]  # the dead may await burial

    pids = alive()
    assert pids
    os.killpg(running.pid, number) if number == signal.SIGTERM else running.send_signal(number)
    assert running.wait(timeout=100) == (75 if number == signal.SIGTERM else -number)
    deadline = time.monotonic() + 30  # workers look for their parent every few seconds
    while alive() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert alive() == []
    assert shared_memory(pids) == []
