"""Graceful shutdown: on a signal finish the step, save a checkpoint and exit. A second Ctrl-C stops at once.

SIGTERM and SIGUSR1 come from schedulers (SLURM, Kubernetes), SIGINT from the keyboard.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from effssl.runtime.errors import Stopped
from effssl.runtime.progress import say

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Stop:
    """A signal handler that records the request to stop."""

    def __init__(self) -> None:
        self.requested = ""  # name of the signal
        self.training = False  # before training starts there is nothing to save

    def begin_training(self) -> None:
        """From now on there is something to save."""
        self.training = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Record the first signal; a second Ctrl-C stops at once."""
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.training:
            self.requested = signal.Signals(number).name
            raise Stopped(f"{self.requested}: stopped before training began; resume with --resume auto")
        if not self.requested:
            self.requested = signal.Signals(number).name
            say(f"{self.requested}: finishing the step and saving")


@contextmanager
def catch_signals() -> Iterator[Stop]:
    """Record signals during the block instead of dying from them; works in the main thread only."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    previous = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
