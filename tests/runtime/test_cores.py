"""Usable cores: what the process is bound to, what control groups allow, what SLURM has given."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from effssl.runtime.cores import cgroup_quota, cores_per_process, usable_cores

ROOT = Path(__file__).parents[2]


def test_a_container_has_its_quota_however_deep_it_is_set(tmp_path: Path) -> None:
    own, group = tmp_path / "own", tmp_path / "root" / "job" / "task"
    group.mkdir(parents=True)
    own.write_text("0::/job/task\n")
    (group / "cpu.max").write_text("max 100000\n")
    assert cgroup_quota(own, tmp_path / "root") == math.inf
    (group.parent / "cpu.max").write_text("150000 100000\n")
    assert cgroup_quota(own, tmp_path / "root") == 1.5
    own.write_text("0::/\n")  # as a process inside of the container sees it
    (tmp_path / "root" / "cpu.max").write_text("50000 100000\n")
    assert cgroup_quota(own, tmp_path / "root") == 0.5


def test_the_first_version_of_control_groups(tmp_path: Path) -> None:
    own, group = tmp_path / "own", tmp_path / "cpu,cpuacct" / "docker" / "1"
    group.mkdir(parents=True)
    own.write_text("5:memory:/docker/1\n4:cpu,cpuacct:/docker/1\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    assert cgroup_quota(own, tmp_path) == math.inf
    (group / "cpu.cfs_quota_us").write_text("300000\n")
    assert cgroup_quota(own, tmp_path) == 3


def test_no_control_groups_no_limit(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path / "none", tmp_path) == math.inf


def test_a_slurm_task_has_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    outside = usable_cores()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert usable_cores() == 1
    monkeypatch.delenv("SLURM_CPUS_PER_TASK")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "1000")
    assert usable_cores() == outside


def test_processes_of_torchrun_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("effssl.runtime.cores.usable_cores", lambda: 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert cores_per_process() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "9")
    assert cores_per_process() == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not bind processes to cores")
def test_a_process_that_is_bound_to_a_core_uses_one() -> None:
    bind = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    found = python(f"{bind}; from effssl.runtime.cores import usable_cores; print(usable_cores())")
    assert found.stdout.strip() == "1"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not bind processes to cores")
def test_more_workers_than_the_cores_of_a_bound_process_are_no_warning(tmp_path: Path) -> None:
    for i in range(4):
        Image.new("RGB", (80, 80), (i, 0, 0)).save(tmp_path / f"{i}.png")
    code = f"""
import os
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
from effssl.data import open_data
from effssl.data.decoding import worker_count
from effssl.data.images import Reading, crop_batches, whole_boxes
images = open_data({str(tmp_path)!r}).train
batches = list(crop_batches(images, whole_boxes(images.sizes), 16, 2, Reading(workers=2)))
print(worker_count(-1), len(batches))
"""
    found = python(code)
    assert found.stdout.split() == ["1", "2"]
    assert found.stderr == ""


@pytest.mark.long
def test_torch_has_no_more_threads_and_more_workers_than_cores_are_no_warning(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for i in range(4):
        Image.new("RGB", (300, 300), (i, 0, 0)).save(tmp_path / f"photos/{i}.png")
    code = (
        "import effssl, os, torch; from effssl.runtime.device import pick_device; pick_device('cpu'); "
        f"effssl.pack({str(tmp_path / 'photos')!r}, {str(tmp_path / 'pack')!r}, workers=1 + os.cpu_count()); "
        "print(torch.get_num_threads())"
    )
    found = python(code, SLURM_JOB_ID="7", SLURM_CPUS_PER_TASK="1")
    assert found.stdout.strip().endswith("1"), found.stderr
    assert "DataLoader" not in found.stderr


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run some code in a process whose number of threads nobody has set."""
    env = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    env |= {"PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
