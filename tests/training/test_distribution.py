"""Two processes with half the batch each are one process with all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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
