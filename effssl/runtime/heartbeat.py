"""Each process of a run says now and then that it is alive; whoever waits for a silent one gives up and says so.

A process that was killed is noticed by torchrun at once. One that hangs, or whose machine lost its power, leaves the
others waiting inside a collective call, which no exception reaches: so a thread of each process listens.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as dist

EVERY, PATIENCE = 5.0, 40.0  # seconds


@contextmanager
def beating(connect: Callable[[], dist.Store], rank: int, world: int) -> Iterator[None]:
    """While the block runs, tell the others that this process lives, and end it when one of them is silent."""
    over = threading.Event()
    store = connect()  # a connection of its own: the main thread's may be busy waiting
    threading.Thread(target=_beat, args=(store, rank, world, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _beat(store: dist.Store, rank: int, world: int, over: threading.Event) -> None:
    heard = dict.fromkeys(range(world), ("", time.monotonic()))  # what each said last, and when that was new
    count, last = 0, time.monotonic()
    while not over.wait(EVERY):
        if time.monotonic() - last > PATIENCE / 2:  # this process itself was stopped: others may have been, too
            heard = dict.fromkeys(heard, ("", time.monotonic()))
        last = time.monotonic()
        try:
            count += 1
            store.set(f"beat/{rank}", str(count))
            for other in range(world):
                said = store.get(f"beat/{other}").decode() if store.check([f"beat/{other}"]) else ""
                if said != heard[other][0]:
                    heard[other] = (said, time.monotonic())
        except (RuntimeError, OSError):
            if not over.is_set():
                give_up(f"process {rank} of {world} lost contact with the process that coordinates the run")
            return
        silent = [str(other) for other, (_, when) in heard.items() if time.monotonic() - when > PATIENCE]
        if silent and not over.is_set():
            give_up(f"process {', '.join(silent)} of {world} has been silent for {PATIENCE:.0f} s")


def give_up(reason: str) -> None:
    """End this process with a message; the main thread cannot, it waits for an answer that will not come."""
    message = f"effssl: {reason}; the last checkpoint is intact, go on with --resume auto"
    print(message, file=sys.stderr, flush=True)
    os._exit(1)
