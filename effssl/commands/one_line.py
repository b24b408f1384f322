"""Command lines by tyro, whose mistakes become one line."""

from __future__ import annotations

import contextlib
import functools
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from effssl.runtime.errors import RequestError

RULE = re.compile(r"^[─╭╮╰╯\s]+$")


def parse_command(command: Callable[..., Any], args: Sequence[str], prog: str, **options: Any) -> Any:
    """Parse a command line into a dataclass, or into the arguments of a function, which is then called."""
    import tyro

    @functools.wraps(command, updated=())
    def later(*given: Any, **named: Any) -> Any:
        return functools.partial(command, *given, **named)

    is_class = isinstance(command, type)
    said = io.StringIO()
    try:
        # Only parsing happens here: what the command itself says must not be held back.
        with contextlib.redirect_stderr(said):
            parsed = tyro.cli(command if is_class else later, args=args, prog=prog, **options)
    except SystemExit as stop:
        if not stop.code:  # help
            raise
        raise RequestError(unboxed(said.getvalue(), prog)) from None
    return parsed if is_class else parsed()


def unboxed(text: str, prog: str) -> str:
    """The sentence in tyro's box, and the option that may have been meant.

    >>> unboxed("╭─ Oops ─╮\\n│ Unrecognized: --lrr │\\n│ ─── │\\n│ Perhaps you meant: │\\n│  --lr FLOAT │\\n", "x")
    'Unrecognized: --lrr (did you mean --lr?); x --help shows all options'
    """
    lines = [line.strip().strip("│").strip() for line in text.splitlines() if not line.strip().startswith(("╭", "╰"))]
    parts: list[list[str]] = [[]]
    for line in lines:
        if RULE.match(line) and line:
            parts.append([])
        else:
            parts[-1].append(line)
    what = " ".join(parts[0]).split(" Got errors:")[0].replace("'None', ", "").strip().rstrip(".")
    meant = [line.split()[0].rstrip(",") for part in parts[1:] for line in part if line.startswith("--")]
    near = f" (did you mean {meant[0]}?)" if meant and any("Perhaps" in " ".join(part) for part in parts) else ""
    return f"{what or 'the command line cannot be read'}{near}; {prog} --help shows all options"
