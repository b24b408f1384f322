"""Command lines by tyro, whose mistakes become one line."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from effssl.runtime.errors import RequestError, did_you_mean
from effssl.runtime.reading import one_line
from effssl.several import join_sets

RULE = re.compile(r"^(?:[─╭╮╰╯\s]+|-{5,})$")  # dashes where a terminal knows ASCII only
MISFIT = re.compile(r"^Error parsing (\S+): no type matching (.*) could be instantiated from \[(.*)\]$")
KINDS = {"INT": "whole number", "FLOAT": "number", "STR": "text", "PATH": "path"}
LARGEST = 2**53  # up to here floats count every whole number
FLOAT32 = 3.4e38  # in which everything is computed
FLAG = re.compile(r"--[A-Za-z][\w.-]*")
UNKNOWN = "Unrecognized options: "  # tyro's words, in a box whose lines are dashes where a terminal knows ASCII only
UNKNOWN_OPTIONS = re.compile(rf"{UNKNOWN}(.*?)(?:[─-]{{5,}}|$)")
# What other programs call our flags. The weight of a term is the paper's λ.
MEANT = {
    "--lambda": "--TERM.weight", "--lamda": "--TERM.weight", "--lambd": "--TERM.weight", "--weight": "--TERM.weight",
    "--wandb": "--log wandb", "--mlflow": "--log mlflow", "--tensorboard": "--log tensorboard", "--csv": "--log csv",
    "--learning-rate": "--lr", "--bs": "--batch-size", "--model": "--encoder", "--arch": "--encoder",
    "--backbone": "--encoder", "--dataset": "--data", "--output": "--out", "--gpu": "--device cuda",
    "--cuda": "--device cuda", "--num-workers": "--workers", "--method": "--objective", "--loss": "--objective",
}  # fmt: skip


def parse_command(command: Callable[..., Any], args: Sequence[str], prog: str, **options: Any) -> Any:
    """Parse a command line into a dataclass, or into the arguments of a function, which is then called."""
    import tyro

    @functools.wraps(command, updated=())
    def later(*given: Any, **named: Any) -> Any:
        return functools.partial(command, *given, **named)

    args = join_data(args)
    is_class = isinstance(command, type)
    said = io.StringIO()
    try:
        # Only parsing happens here: what the command itself says must not be held back.
        with contextlib.redirect_stderr(said):
            parsed = tyro.cli(command if is_class else later, args=args, prog=prog, **options)
    except SystemExit as stop:
        if not stop.code:  # help
            raise
        known = tyro.extras.get_parser(command if is_class else later, prog=prog, **options)._option_string_actions
        raise RequestError(unboxed(said.getvalue(), prog, known)) from None
    check_numbers(vars(parsed) if is_class else parsed.keywords)
    return parsed if is_class else parsed()


def join_data(args: Sequence[str]) -> list[str]:
    """A command line with one --data in place of several, which mean several data sets.

    >>> join_data(["--data", "photos", "--lr", "0.1", "--data=2*scans"])
    ['--lr', '0.1', '--data', 'photos + 2*scans']
    """
    rest: list[str] = []
    sets: list[str] = []
    waiting = iter(args)
    for arg in waiting:
        if arg.startswith("--data=") or arg == "--data":
            sets += [arg.removeprefix("--data=")] if arg != "--data" else itertools.islice(waiting, 1)
        else:
            rest.append(arg)
    return [*rest, "--data", join_sets(sets)] if len(sets) > 1 else list(args)


def check_numbers(given: Mapping[str, Any]) -> None:
    """Refuse numbers that no flag takes: what is not finite, and what no counter holds."""
    for name, value in given.items():
        for number in value if isinstance(value, tuple) else (value,):
            limit = {float: FLOAT32, int: LARGEST}.get(type(number))
            if limit is not None and not -limit <= number <= limit:
                flag = f"--{name.replace('_', '-')}"
                raise RequestError(f"{flag} is {one_line(number, 80)}; it must be a finite number, up to {limit:g}")


def unboxed(text: str, prog: str, known: Iterable[str] = ()) -> str:
    """The sentence in tyro's box, and the option that may have been meant, one of the `known`.

    >>> unboxed("╭─ Oops ─╮\\n│ Unrecognized: --lrr │\\n│ ─── │\\n│ Perhaps you meant: │\\n│  --lr FLOAT │\\n", "x")
    'Unrecognized: --lrr (did you mean --lr?); x --help shows all options'
    """
    lines = [line.strip().strip("│").strip() for line in text.splitlines() if not line.strip().startswith(("╭", "╰"))]
    unrecognized = UNKNOWN_OPTIONS.search(" ".join(lines))
    unknown = [flag for flag in FLAG.findall(unrecognized[1]) if flag not in known] if unrecognized else []
    if unknown and known:
        what = UNKNOWN + ", ".join(flag + nearest_flag(flag, known) for flag in unknown)
        return f"{what}; {prog} --help shows all options"
    parts: list[list[str]] = [[]]
    for line in lines:
        if RULE.match(line) and line:
            parts.append([])
        else:
            parts[-1].append(line)
    if "╭" not in text and len(parts) > 1:  # above the first line of dashes is the title of the box
        del parts[0]
    what = " ".join(parts[0]).split(" Got errors:")[0].replace("'None', ", "").strip().rstrip(".")
    what = misfit(what)
    meant = [line.split()[0].rstrip(",") for part in parts[1:] for line in part if line.startswith("--")]
    near = f" (did you mean {meant[0]}?)" if meant and any("Perhaps" in " ".join(part) for part in parts) else ""
    return f"{what or 'the command line cannot be read'}{near}; {prog} --help shows all options"


def misfit(text: str) -> str:
    """Say in plain words that a value is not of the kind that a flag takes; other sentences stay as they are.

    >>> misfit("Error parsing --epochs: no type matching INT could be instantiated from ['nan']")
    "--epochs takes a whole number, not 'nan'"
    >>> misfit("Error parsing --x.scale: no type matching {FLOAT FLOAT} could be instantiated from ['1', 'b']")
    "--x.scale takes 2 numbers, not '1', 'b'"
    """
    found = MISFIT.match(text)
    if not found:
        return text
    flag, kind, given = found.groups()
    words = kind.strip("{}").split()
    named = {KINDS.get(word) for word in words}
    if named == {None} or len(named) > 1:
        takes = f"a value of the form {kind}"
    elif len(words) > 1:
        takes = f"{len(words)} {KINDS[words[0]]}s"
    else:
        takes = f"a {KINDS[words[0]]}"
    return f"{flag} takes {takes}, not {given or 'nothing'}"


def nearest_flag(flag: str, known: Iterable[str]) -> str:
    """Say which flag was meant, or nothing.

    >>> nearest_flag("--epoch", ["--epochs", "--dino.freeze-epochs"]), nearest_flag("--wandb", ["--log"])
    (' (did you mean --epochs?)', ' (did you mean --log wandb?)')
    """
    meant = MEANT.get(flag.replace("_", "-"), "")
    names = {name.split(".")[-1] for name in known} if meant.startswith("--TERM") else {*known}
    if meant and meant.removeprefix("--TERM.").split()[0] in names:
        return f" (did you mean {meant}?)"
    return did_you_mean(flag, (name for name in known if name.startswith("--")))
