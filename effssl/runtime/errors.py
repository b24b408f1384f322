"""The ways a command can end early; the command line turns each into one line and an exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST = 80  # characters of a word that is compared


class RequestError(ValueError):
    """What was asked for is wrong: unknown name, missing folder, a run that is already there. Exit code 2."""


class RunFailed(RuntimeError):
    """The request was fine and the run cannot continue: the loss is not finite, the disk is full. Exit code 1."""


class Stopped(Exception):
    """The run was stopped by a signal and is saved; it can be resumed. Exit code 75."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Say which known word is nearest, or nothing.

    >>> did_you_mean("rotatoin", ["byol", "rotation"])
    ' (did you mean rotation?)'
    """
    near = difflib.get_close_matches(word[:LONGEST], list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""
