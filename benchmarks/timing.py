"""Interleaved repeats: two things are compared within the same seconds, so that the machine's moods cancel."""

from __future__ import annotations

import time
from collections.abc import Callable


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def interleaved(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each function, `repeats` times in turn, after one warm-up each."""
    for function in functions.values():
        function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            times[name].append(seconds(function))
    return times
