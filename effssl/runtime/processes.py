"""Processes that belong to another one."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

CHILD = (
    "import sys; from effssl.runtime.processes import die_with_parent; die_with_parent(int(sys.argv[1])); "
    "from effssl.cli import main; main(sys.argv[2:])"
)
PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal a process gets when its parent dies


def die_with_parent(parent: int) -> None:
    """End this process when `parent` is gone, even if that was killed; outside of Linux this does nothing."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed just before
        os._exit(1)


def child_command(*args: str) -> list[str]:
    """`effssl ARGS` as a process that ends with this one, whatever ends this one."""
    return [sys.executable, "-c", CHILD, str(os.getpid()), *args]


def child_environment(jobs: int) -> dict[str, str]:
    """For one of `jobs` processes that share the machine: threads that spin on each other's cores cost ten times."""
    return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // max(1, jobs)))} | os.environ


def last_words(text: str, code: int) -> str:
    """What a process said at its end, in one line."""
    return (text.strip().splitlines() or [f"ended with code {code}"])[-1]
