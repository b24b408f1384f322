"""Child processes that end with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from effssl.runtime.cores import usable_cores
from effssl.runtime.errors import RequestError

CHILD = (
    "import sys; from effssl.runtime.processes import die_with_parent; die_with_parent(int(sys.argv[1])); "
    "import runpy; sys.argv = sys.argv[2:]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal that a process gets when its parent dies


def die_with_parent(parent: int) -> None:
    """End this process when `parent` ends, even if that one was killed; does nothing outside of Linux."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed just before
        os._exit(1)


def environment_number(name: str, default: int) -> int:
    """A whole number from the environment, as torchrun sets some."""
    text = os.environ.get(name, str(default))
    if not (text.isascii() and text.isdigit()):
        raise RequestError(
            f"the environment variable {name} is {text!r}; it must be a whole number, as torchrun sets it"
        )
    return int(text)


def check_environment() -> None:
    """Refuse WORLD_SIZE without what torchrun sets beside it."""
    count = environment_number("WORLD_SIZE", 1)
    if count <= 1:
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise RequestError(f"WORLD_SIZE is {count}, but {', '.join(missing)} is not set; start with torchrun")
    if not environment_number("RANK", 0) < count or not 0 < environment_number("MASTER_PORT", 0) < 1 << 16:
        raise RequestError("RANK, WORLD_SIZE and MASTER_PORT do not fit together; start with torchrun")


def is_first_process() -> bool:
    """Whether this is the process that writes, also after the processes have parted; RANK alone means nothing."""
    return environment_number("WORLD_SIZE", 1) <= 1 or environment_number("RANK", 0) == 0


def child_command(module: str, *args: str) -> list[str]:
    """`python -m MODULE ARGS` as a process that ends with this one, whatever ends this one."""
    return [sys.executable, "-c", CHILD, str(os.getpid()), module, *args]


def child_environment(workers: int) -> dict[str, str]:
    """Environment of one of `workers` child processes: each gets its share of the cores as threads.

    Threads of two processes that share a core wait for each other and become ten times slower. OMP_NUM_THREADS wins
    where the user has set it.
    """
    return {"OMP_NUM_THREADS": str(max(1, usable_cores() // max(1, workers)))} | os.environ
