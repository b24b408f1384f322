"""What the CPU says it can do, and what it really can."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
TRY_BF16 = "import torch; a = torch.ones(64, 128, dtype=torch.bfloat16); a @ a.T"
WITHOUT_AMX = "AVX512_CORE_FP16"


def processor_name() -> str:
    """The CPU's name and the widest instructions that torch uses on it."""
    import torch

    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{(names or [platform.machine()])[0]}, {torch.backends.cpu.get_cpu_capability()}"


def avoid_broken_amx() -> bool:
    """Keep oneDNN from using AMX where that kills the process; whether it had to.

    Some virtual machines announce AMX and raise SIGILL when a bfloat16 product uses it. A child process tries one, and
    takes two seconds for it, on machines that announce AMX only. Call it before the first convolution or product:
    oneDNN decides on its instructions once.
    """
    announced = CPU_INFO.exists() and "amx_tile" in CPU_INFO.read_text()
    if not announced or "ONEDNN_MAX_CPU_ISA" in os.environ:
        return False
    if subprocess.run([sys.executable, "-c", TRY_BF16], capture_output=True).returncode >= 0:
        return False
    os.environ["ONEDNN_MAX_CPU_ISA"] = WITHOUT_AMX
    return True
