"""The ways a command can end early; the command line turns each into one line and an exit code.

Messages are written with flags, as the command line has them. Where Python called, they name keyword arguments.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from effssl.runtime.reading import one_line

LONGEST = 80  # characters of a word that is compared
# Words that are values; after a flag, any other word goes on with the sentence.
WORDS = (
    "auto|never|folders|none|random|predicted|optuna|onnx|on|off|h|z|view|image|pca|kmeans|digits|csv|"
    "tensorboard|wandb|mlflow|patches|pixels|adamw"
)
# A value ends with a letter or a digit: what follows may be the end of the sentence.
VALUE = (
    r"'[^']*'|[A-Z][A-Z_]+\b|\d+(?:[.:]?\w+)*|[a-z]+(?:[0-9./_-]+[a-z]*)*[0-9]\w*|\w+(?:[./_-]\w+)+|"
    rf"(?:{WORDS})\b"
)
# A whole command stays one.
OPTION = re.compile(
    rf"(?P<command>\b(?:effssl [a-z]+|torchrun|wandb) [^;,)]*)|"
    rf"--(?P<groups>(?:[a-z][a-z0-9_]*\.)*)(?P<no>no-)?(?P<name>[a-z][a-z0-9-]*)(?: (?P<value>{VALUE}))?"
)
SWITCHES = ("overwrite", "download")
MESSAGE = 2000  # characters of an error
_command_line = False  # whether flags are what the caller knows


@contextmanager
def speaking_flags() -> Iterator[None]:
    """A block in which errors name flags, because the command line called."""
    global _command_line
    before, _command_line = _command_line, True
    try:
        yield
    finally:
        _command_line = before


def in_words_of_caller(text: str) -> str:
    """A message as it was written, or with keyword arguments where Python called."""
    return text if _command_line else in_python(text)


def in_python(text: str) -> str:
    """A message with keyword arguments in place of flags.

    >>> in_python("it exists; resume it with --resume auto, or choose another --out")
    'it exists; resume it with resume="auto", or choose another out='
    >>> in_python("use --views.rotated.count 2, --no-prune or effssl pack FOLDER --out PACK")
    'use views={"rotated": {"count": 2}}, prune=False or effssl pack FOLDER --out PACK'
    """
    return OPTION.sub(_keyword, text)


def _keyword(found: re.Match[str]) -> str:
    if found["command"]:
        return found["command"]
    outer, name = str(found["groups"]).split(".")[:-1], str(found["name"]).replace("-", "_")
    value = "False" if found["no"] else "True" if name in SWITCHES else found["value"]
    if value is None:
        return ".".join([*outer, name]) + ("" if outer else "=")
    if not re.fullmatch(r"True|False|[A-Z_]+|[\d.]+|'.*'", value):
        value = f'"{value}"'
    if not outer:
        return f"{name}={value}"
    inner = f'{{"{name}": {value}}}'
    for group in reversed(outer[1:]):
        inner = f'{{"{group}": {inner}}}'
    return f"{outer[0]}={inner}"


class OneLine(Exception):
    """An error whose message is one line, whatever it repeats, and all that a caller needs to read."""

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(message, MESSAGE))

    def __str__(self) -> str:
        return in_words_of_caller(super().__str__())

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: IPython looks for this name."""
        return [f"{type(self).__name__}: {self}"]


class RequestError(OneLine, ValueError):
    """What was asked for is wrong: unknown name, missing folder, a run that is already there. Exit code 2."""


class RunFailed(OneLine, RuntimeError):
    """The request was fine and the run cannot continue: the loss is not finite, the disk is full. Exit code 1."""


class Stopped(OneLine):
    """The run was stopped by a signal and is saved; it can be resumed. Exit code 75."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Say which known word is nearest, or nothing.

    >>> did_you_mean("rotatoin", ["byol", "rotation"])
    ' (did you mean rotation?)'
    """
    near = difflib.get_close_matches(word[:LONGEST], list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""
