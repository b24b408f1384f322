"""effssl watch RUN: follow a run from another terminal."""

from __future__ import annotations

from effssl.runtime.errors import RequestError


def watch(run: str, /, once: bool = False, every: float = 2.0) -> None:
    """Show the curves, the verdict and the time left of a run until it is finished; Ctrl-C does not stop the run.

    Args:
        run: run folder
        once: print it once and exit, which is the default if the output is not a terminal
        every: seconds between two updates
    """
    from effssl.report.watch import watch as watch_run

    if not 0 < every <= 3600:
        raise RequestError(f"--every is {every}; it must be more than 0 and at most 3600 seconds")
    watch_run(run, once, every)
