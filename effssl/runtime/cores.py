"""How many cores this process may use: fewer than the machine has under taskset, in containers and in SLURM jobs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # with which users set the number of threads themselves


def usable_cores() -> int:
    """Cores that the machine has, that the process is bound to, that its container and its SLURM task may use."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota(OWN_GROUPS, CGROUPS)
    return max(1, math.ceil(min(bound, quota, slurm_cores() or bound)))


def cores_per_process() -> int:
    """The share of this process where torchrun has started several on this machine."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, usable_cores() // max(1, int(local) if local.isdecimal() else 1))


def cgroup_quota(own: Path, root: Path) -> float:
    """Cores that control groups leave to this process, e.g. 1.5 with `docker run --cpus 1.5`; infinite without a limit.

    own: the file that names the groups of this process, one line for each hierarchy; root: where the groups are.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return math.inf
    quotas = [math.inf]
    for line in lines:
        _, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if not kinds:
            quotas += [_quota_of(*_words(group / "cpu.max")) for group in _groups(root, path)]
        elif "cpu" in kinds.split(","):
            for group in _groups(root / kinds, path) if (root / kinds).is_dir() else _groups(root / "cpu", path):
                quotas.append(_quota_of(*_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us")))
    return min(quotas)


def _groups(root: Path, path: str) -> Iterator[Path]:
    """A group and all above it: each may have a limit; in a container, its own group is the root."""
    group = root / path.strip("/")
    yield from (group, *(parent for parent in group.parents if parent.is_relative_to(root)))


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _quota_of(*words: str) -> float:
    """Quota and period in microseconds, as cores; "max" and -1 are no limit."""
    if len(words) != 2 or not all(word.isdecimal() for word in words) or not int(words[1]):
        return math.inf
    return int(words[0]) / int(words[1])


def slurm_cores() -> int:
    """Cores of this task in a SLURM job; 0 outside of one."""
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        text = os.environ.get(name, "")
        if "SLURM_JOB_ID" in os.environ and text.isdecimal() and int(text):
            return int(text)
    return 0


def limit_threads() -> None:
    """Give torch no more threads than there are usable cores: it does not see the limits of containers and of SLURM."""
    import torch

    if not any(name in os.environ for name in THREAD_VARIABLES) and torch.get_num_threads() > usable_cores():
        torch.set_num_threads(usable_cores())
