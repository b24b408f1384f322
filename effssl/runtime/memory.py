"""Settings of the memory allocator."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # constants of glibc's malloc.h


def keep_freed_memory() -> None:
    """Keep glibc from returning freed memory to the system; with other C libraries this does nothing.

    Batched augmentation frees and allocates tensors of about a megabyte many times per step. By default each of them is
    mapped again and causes a page fault per page, which made augmentation two times slower.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(M_MMAP_THRESHOLD, 32 << 20)
    mallopt(M_TRIM_THRESHOLD, 1 << 30)
