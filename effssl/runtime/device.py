"""Selection of the device."""

from __future__ import annotations

import torch

from effssl.runtime.cores import limit_threads
from effssl.runtime.distribution import local_rank
from effssl.runtime.errors import RequestError

KNOWN = ("cpu", "cuda", "mps")


def first_sentence(error: Exception) -> str:
    """What torch says first; a list of all its operators may follow.

    >>> first_sentence(RuntimeError("Could not run it with the 'MPS' backend. This could be because\\n…"))
    "Could not run it with the 'MPS' backend"
    """
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0].split(". ")[0].rstrip(".")


def pick_device(name: str) -> torch.device:
    """The device of that name; "auto" is CUDA or MPS where available, else the CPU, with a thread per usable core."""
    limit_threads()
    if name != "auto":
        try:
            device = torch.device(name)
        except RuntimeError:
            device = None
        if device is None or device.type not in KNOWN:
            raise RequestError(f"device {name!r} cannot be used; use auto, {', '.join(KNOWN)}")
        try:
            torch.empty(1, device=device)
        except (RuntimeError, AssertionError) as error:
            raise RequestError(f"device {name!r} cannot be used: {first_sentence(error)}") from None
        return device
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank())
        torch.cuda.set_device(device)
        return device
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
