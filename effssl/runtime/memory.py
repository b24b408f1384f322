"""Memory that a step frees is needed again by the next one."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names and numbers of glibc's malloc.h


def keep_freed_memory() -> None:
    """Tell glibc not to hand freed memory back to the system; elsewhere this does nothing.

    Batched augmentation frees and allocates tensors of a megabyte or so many times per step. By default each of them
    is mapped afresh and every page is faulted in again, which made augmentation two times slower.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(M_MMAP_THRESHOLD, 32 << 20)
    mallopt(M_TRIM_THRESHOLD, 1 << 30)
