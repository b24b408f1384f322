"""Where tensors live."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from effssl.runtime.distribution import local_rank
from effssl.runtime.errors import RequestError


def pick_device(name: str) -> torch.device:
    """auto is the first accelerator found, else the CPU."""
    if name != "auto":
        try:
            device = torch.device(name)
            torch.empty(1, device=device)
        except (RuntimeError, AssertionError) as error:
            raise RequestError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from None
        return device
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank())
        torch.cuda.set_device(device)
        return device
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def processor() -> str:
    """The CPU's name and the widest instructions that torch uses on it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{(names or [platform.machine()])[0]}, {torch.backends.cpu.get_cpu_capability()}"
