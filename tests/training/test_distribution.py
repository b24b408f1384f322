"""Two processes with half the batch each are one process with all of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import effssl
from tests.chaos import children

ROOT = Path(__file__).parent.parent.parent
SCRIPT = Path(__file__).with_name("equality.py")


def start(*args: str, processes: int = 1) -> subprocess.Popen:
    many = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, *many, *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("equality")
    found = []
    for processes in (1, 2):
        running = start(str(SCRIPT), str(folder / f"{processes}.pt"), processes=processes)
        output, _ = running.communicate(timeout=400)
        assert running.returncode == 0, output[-3000:]
        found.append(torch.load(folder / f"{processes}.pt", weights_only=True))
    return found


def test_gradients_and_weights_are_the_same_for_every_term(both: list[dict]) -> None:
    one, two = both
    assert len(one) >= 14
    for objective in one:
        assert one[objective].keys() == two[objective].keys(), objective
        for key, value in one[objective].items():
            difference = float((value.double() - two[objective][key].double()).abs().max()) if value.numel() else 0.0
            assert difference < 1e-9, f"{objective}: {key} differs by {difference}"
        grads = [v.abs().max() for k, v in one[objective].items() if k.startswith("grad")]
        assert torch.stack(grads).max() > 1e-3


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
PRETRAIN = [
    "-m", "effssl", "pretrain", "--data", "digits", "--objective", "moco+rotation", "--moco.queue", "200", "--encoder",
    "small", "--batch-size", "64", "--subset", "512", "--resume", "auto", "--checkpoint-every", "1",
]  # fmt: skip


def test_one_process_becomes_two_and_their_looks_agree(tmp_path: Path) -> None:
    """A run that one process began and two go on with, against one process all the way."""
    # At a tiny learning rate: at the usual one differences of rounding grow to a thousandth of the loss in eight steps.
    common = [*PRETRAIN, "--epochs", "2", "--lr", "0.0001"]
    alone = start(*common, "--out", str(tmp_path / "alone"))
    begun = start(*common, "--out", str(tmp_path / "both"))
    while not (tmp_path / "both" / "checkpoint.pt").exists():
        assert begun.poll() is None
        time.sleep(0.01)
    begun.send_signal(signal.SIGTERM)
    begun.communicate(timeout=200)
    assert begun.returncode == 75
    going_on = start(*TORCHRUN, *common, "--out", str(tmp_path / "both"))
    said, _ = going_on.communicate(timeout=300)
    alone.communicate(timeout=200)
    assert going_on.returncode == alone.returncode == 0, said[-2000:]
    assert "1 processes became 2, with the same batches and views" in said
    assert said.count("done:") == 1  # one speaks for all
    one, two = (effssl.Run(tmp_path / name) for name in ("alone", "both"))
    for a, b in zip(one.metrics(), two.metrics(), strict=True):
        assert a["knn"] == pytest.approx(b["knn"], abs=1.5)  # neighbors are gathered from both
        assert a["epoch"] == b["epoch"]
        assert a.get("loss", 0) == pytest.approx(b.get("loss", 0), rel=1e-4)


def test_two_processes_start_from_the_same_weights_as_one(tmp_path: Path) -> None:
    quick = {"encoder": "small-4", "batch_size": 64, "subset": 512, "quiet": True, "report": False}
    source = effssl.pretrain("digits", "simclr", epochs=1, out=tmp_path / "source", **quick)
    common = ["-m", "effssl", "pretrain", "--data", "digits", "--objective", "simclr", "--batch-size", "64"]
    common += [
        "--subset",
        "512",
        "--epochs",
        "1",
        "--lr",
        "0.0001",
        "--start-from",
        str(source.folder),
        "--freeze",
        "1",
    ]
    for name, many in (("one", []), ("two", TORCHRUN)):
        said, _ = (running := start(*many, *common, "--out", str(tmp_path / name))).communicate(timeout=300)
        assert running.returncode == 0, said[-2000:]
        assert said.count("starts from") == 1
        assert said.count("with the starting weights") == 2  # at the beginning, and beside the score at the end
    one, two = (effssl.Run(tmp_path / name) for name in ("one", "two"))
    assert one.config == two.config
    for a, b in zip(one.metrics(), two.metrics(), strict=True):
        assert a["knn"] == pytest.approx(b["knn"], abs=1.5)
        assert a.get("loss", 0) == pytest.approx(b.get("loss", 0), rel=1e-4)


def test_processes_that_do_not_find_each_other_say_so(tmp_path: Path) -> None:
    code = (
        "import sys, datetime, effssl.runtime.distribution as d; from effssl.cli import main\n"
        "d.TIMEOUT = datetime.timedelta(seconds=1); main(sys.argv[1:])"
    )
    nobody = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *PRETRAIN[2:], "--out", str(tmp_path / "r")],
        env=os.environ | nobody, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "effssl: process 1 of 2 did not find the others at 127.0.0.1:1 (" in done.stderr.splitlines()[-1]


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("whom", ["one of two", "torchrun"])
def test_a_lost_process_ends_the_job_within_a_minute(tmp_path: Path, whom: str) -> None:
    running = start(*TORCHRUN, *PRETRAIN, "--epochs", "500", "--out", str(tmp_path / "r"))
    while not (tmp_path / "r" / "checkpoint.pt").exists():
        assert running.poll() is None
        time.sleep(0.05)
    processes = children(running.pid)
    assert len(processes) == 2
    os.kill(processes[1] if whom == "one of two" else running.pid, signal.SIGKILL)
    lost = time.monotonic()
    said, _ = running.communicate(timeout=100)
    assert running.returncode != 0
    while alive(processes) and time.monotonic() - lost < 60:
        time.sleep(0.1)
    assert alive(processes) == []
    assert time.monotonic() - lost < 60
    if whom == "one of two":
        assert "lost contact with another one; the last checkpoint is intact, resume with --resume auto" in said
