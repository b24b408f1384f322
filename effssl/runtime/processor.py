"""What the CPU says it can do, and what it really can."""

from __future__ import annotations

import faulthandler
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
TRY_BF16 = "import torch; a = torch.ones(64, 128, dtype=torch.bfloat16); a @ a.T"
WITHOUT_AMX = "AVX512_CORE_FP16"
PRODUCT = 1024  # rows and columns of the product that tells a machine's speed
REFERENCE_FLOPS = 320e9  # of that product per second, on the two cores that the recipes for budgets were measured on
FORK_SECONDS = 20  # that a product may take in a copy of this process


def processor_name() -> str:
    """The CPU's name and the widest instructions that torch uses on it."""
    import torch

    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{(names or [platform.machine()])[0]}, {torch.backends.cpu.get_cpu_capability()}"


def relative_speed() -> float:
    """Speed of a float32 matrix product on this machine, as a multiple of the reference machine's."""
    import torch

    a, seconds = torch.ones(PRODUCT, PRODUCT), []
    for _ in range(6):
        started = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - started)
    return 2 * PRODUCT**3 / sorted(seconds)[2] / REFERENCE_FLOPS


def avoid_broken_amx() -> bool:
    """Keep oneDNN from using AMX where that kills the process; whether it had to.

    Some virtual machines announce AMX and raise SIGILL when a bfloat16 product uses it. A child process tries one, and
    takes two seconds for it, on machines that announce AMX only. Call it before the first convolution or product:
    oneDNN decides on its instructions once.
    """
    if not announces_amx() or "ONEDNN_MAX_CPU_ISA" in os.environ:
        return False
    if subprocess.run([sys.executable, "-c", TRY_BF16], capture_output=True).returncode >= 0:
        return False
    os.environ["ONEDNN_MAX_CPU_ISA"] = WITHOUT_AMX
    return True


def bf16_kills() -> bool:
    """Whether a bfloat16 product would kill this process: AMX is broken, and oneDNN has decided to use it."""
    return announces_amx() and dies_in_a_copy(_bf16_product)


def bf16_slowdown() -> float:
    """How many times as long as in float32 a small convolution takes in bfloat16: about ten where it is emulated."""
    import torch

    best = []
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(8, 64, 16, 16, dtype=dtype).to(memory_format=torch.channels_last)
        weight = torch.ones(64, 64, 3, 3, dtype=dtype).to(memory_format=torch.channels_last)
        seconds = []
        for _ in range(4):
            started = time.perf_counter()
            torch.conv2d(x, weight, padding=1)
            seconds.append(time.perf_counter() - started)
        best.append(min(seconds))
    return best[1] / best[0]


def announces_amx() -> bool:
    """Whether the CPU says that it has AMX."""
    return CPU_INFO.exists() and "amx_tile" in CPU_INFO.read_text()


def dies_in_a_copy(action: Callable[[], object]) -> bool:
    """Whether an action ends a forked copy of this process by a signal."""
    child = os.fork()
    if not child:
        try:
            faulthandler.disable()  # a death that is expected leaves no trace on the screen
            signal.alarm(FORK_SECONDS)  # SIGALRM kills a copy that hangs
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def _bf16_product() -> None:
    import torch

    torch.set_num_threads(1)  # threads of OpenMP do not exist in a copy
    a = torch.ones(64, 128, dtype=torch.bfloat16)
    a @ a.T
