"""Being asked to stop: finish the step, save, leave. A second Ctrl-C stops at once.

SIGTERM and SIGUSR1 come from schedulers (SLURM, Kubernetes), SIGINT from a keyboard.
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
    """Whether somebody asked the run to stop, and by which signal."""

    def __init__(self) -> None:
        self.requested = ""
        self.training = False  # before that there is nothing to save

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: the first is noted, a second Ctrl-C stops at once."""
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.training:
            self.requested = signal.Signals(number).name
            raise Stopped(f"{self.requested}: stopped before training began; go on with --resume auto")
        if not self.requested:
            self.requested = signal.Signals(number).name
            say(f"{self.requested}: finishing the step and saving")


@contextmanager
def listening() -> Iterator[Stop]:
    """Note signals instead of dying by them; only a program's main thread can."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
