"""Processes that belong to another one."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal a process gets when its parent dies


def die_with_parent(parent: int) -> None:
    """End this process when `parent` is gone, even if that was killed; outside of Linux this does nothing."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed just before
        os._exit(1)
