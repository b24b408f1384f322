"""Heartbeats: every process of a run reports that it is alive, and ends with a message if another one stops doing so.

torchrun notices a killed process at once. One that hangs, or whose machine lost power, leaves the others waiting inside
a collective call, which no exception reaches: so a thread of each process watches the others.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as dist

INTERVAL, TIMEOUT = 5.0, 40.0  # seconds between heartbeats, and without one until a process counts as lost


@contextmanager
def heartbeats(connect: Callable[[], dist.Store], rank: int, world_size: int) -> Iterator[None]:
    """Exchange heartbeats with the other processes during the block; end this process when one of them is lost."""
    finished = threading.Event()
    store = connect()  # a separate connection: the main thread's may be blocked in a wait
    threading.Thread(target=_exchange, args=(store, rank, world_size, finished), daemon=True).start()
    try:
        yield
    finally:
        finished.set()


def _exchange(store: dist.Store, rank: int, world_size: int, finished: threading.Event) -> None:
    """Send a heartbeat every INTERVAL seconds and check those of all processes."""
    seen = dict.fromkeys(range(world_size), ("", time.monotonic()))  # last heartbeat of each, and when it was new
    count = 0
    previous = time.monotonic()
    while not finished.wait(INTERVAL):
        if time.monotonic() - previous > TIMEOUT / 2:  # this process was suspended: the others may have been, too
            seen = dict.fromkeys(seen, ("", time.monotonic()))
        previous = time.monotonic()
        try:
            count += 1
            store.set(f"beat/{rank}", str(count))
            for other in range(world_size):
                beat = store.get(f"beat/{other}").decode() if store.check([f"beat/{other}"]) else ""
                if beat != seen[other][0]:
                    seen[other] = (beat, time.monotonic())
        except (RuntimeError, OSError):
            if not finished.is_set():
                exit_process(f"process {rank} of {world_size} lost contact with the process that coordinates the run")
            return
        silent = [str(other) for other, (_, when) in seen.items() if time.monotonic() - when > TIMEOUT]
        if silent and not finished.is_set():
            exit_process(f"process {', '.join(silent)} of {world_size} has sent no heartbeat for {TIMEOUT:.0f} s")


def exit_process(reason: str) -> None:
    """End this process with a message; the main thread cannot, it waits for a reply that will never come."""
    message = f"effssl: {reason}; the last checkpoint is intact, resume with --resume auto"
    print(message, file=sys.stderr, flush=True)
    os._exit(1)
