"""effssl watch RUN: follow a run from another terminal."""

from __future__ import annotations

from effssl.runtime.errors import RequestError


def watch(run: str, /, once: bool = False, every: float = 2.0) -> None:
    """Show a run's curves, verdict and time left until it is finished; Ctrl-C ends the watching, not the run.

    Args:
        run: run folder
        once: show it once and leave, as is also done where the output is not a terminal
        every: seconds between two looks
    """
    from effssl.report import watch as watching

    if not 0 < every <= 3600:
        raise RequestError(f"--every is {every}; it must be more than 0 and at most 3600 seconds")
    watching.watch(run, once, every)
