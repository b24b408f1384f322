"""The first signal is recorded, a second Ctrl-C stops at once, and the earlier handlers come back."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from effssl.runtime.errors import Stopped
from effssl.runtime.signals import SIGNALS, catch_signals


def interrupt_twice() -> None:
    with catch_signals() as stop:
        stop.training = True
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested == "SIGTERM"
        os.kill(os.getpid(), signal.SIGTERM)  # a scheduler may repeat itself
        assert stop.requested == "SIGTERM"
        os.kill(os.getpid(), signal.SIGINT)


def test_the_first_signal_is_recorded_and_a_second_interrupt_stops_at_once() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(KeyboardInterrupt):
        interrupt_twice()
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_before_training_a_signal_stops_at_once() -> None:
    with catch_signals(), pytest.raises(Stopped, match="SIGUSR1: stopped before training began; resume with resume="):
        os.kill(os.getpid(), signal.SIGUSR1)


def test_outside_of_the_main_thread_nothing_is_caught() -> None:
    requested = []

    def run() -> None:
        with catch_signals() as stop:
            requested.append(stop.requested)

    thread = threading.Thread(target=run)
    before = [signal.getsignal(number) for number in SIGNALS]
    thread.start()
    thread.join()
    assert requested == [""]
    assert [signal.getsignal(number) for number in SIGNALS] == before
