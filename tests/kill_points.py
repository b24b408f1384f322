"""SIGKILL before each file operation of a command: the states of a folder that a random moment hits too rarely.

The command runs in a copy of this process, which counts what it does to files and kills itself before one of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import effssl.report.embedding
import effssl.report.replay
import effssl.training.pretraining  # noqa: F401  here once, and not in each copy of this process
from effssl.cli import main

CHANGES = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "fcntl.flock"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NEVER = 0  # the number of an operation that no command has


ARGS = ("pretrain", "--data", "digits", "--subset", "64", "--batch-size", "32", "--epochs", "1", "--encoder", "tiny")


def of_a_run(folder: Path, step: int = 1) -> Iterator[str]:
    """Kill a run before each of its file operations, or each `step`th, and resume it: what went wrong, each time.

    It has two steps and is saved at its end, so that all its operations belong to its start or its end.
    """
    folder.mkdir(parents=True)
    args = [*ARGS, "--quiet", "--resume", "auto", "--out"]
    names = operations([*args, str(folder / "whole")], folder / "whole", folder / "operations.json")
    expected = contents(folder / "whole")
    for number in range(1, len(names) + 1, step):
        out = folder / f"killed{number}"
        ended = run([*args, str(out)], out, kill_before=number)
        again = run([*args, str(out)], out)
        if (ended, again) != (-signal.SIGKILL, 0):
            yield f"before {names[number - 1]}: codes {ended} and {again}"
            continue
        found = contents(out)
        wrong = [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)]
        yield f"before {names[number - 1]}: {', '.join(sorted(wrong))}" if wrong else ""


def contents(run: Path) -> dict[str, str]:
    """What a run left, by name of the file; of metrics without seconds, of a report and a lock that they are there."""
    found = {}
    for path in run.iterdir():
        content = path.read_bytes()
        if path.name == "metrics.jsonl":
            content = re.sub(rb'"seconds": [0-9.e-]+', b"", content)
        there_only = path.name in ("report.html", "lock", "checkpoint.pt", "checkpoint.previous.pt")  # hold times
        found[path.name] = "" if there_only else hashlib.sha256(content).hexdigest()
    found.pop("checkpoint.previous.pt", None)  # of a run that was saved twice
    return found


def operations(args: Sequence[str], root: Path, list_to: Path) -> list[str]:
    """What a command does to files below `root`, in order, when nothing happens to it."""
    assert run(args, root, NEVER, list_to) == 0
    return json.loads(list_to.read_text())


def run(args: Sequence[str], root: Path, kill_before: int = NEVER, list_to: Path | None = None) -> int:
    """Run `effssl ARGS` in a copy of this process that dies before the operation of this number; its exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = _run_here(args, root, kill_before, list_to)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run_here(args: Sequence[str], root: Path, kill_before: int, list_to: Path | None) -> int:
    done: list[str] = []

    def note(what: str, target: Any) -> None:
        name = os.fsdecode(target) if isinstance(target, (str, bytes, os.PathLike)) else _path_of(target)
        if not name.startswith(str(root)):
            return
        done.append(f"{what} {name.removeprefix(str(root))}".replace(str(os.getpid()), "PID"))
        if len(done) == kill_before:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, found: tuple) -> None:
        if event in CHANGES or (event == "open" and isinstance(found[2], int) and found[2] & WRITES):
            note(event, found[0])

    os.environ["EFFSSL_REPORT"] = "on"  # the report is the end of a run, too
    sys.addaudithook(hook)  # it stays, but this is a copy
    os.fsync = _noted(os.fsync, note)  # no event tells of it: what was written is complete, and has no name yet
    try:
        main(list(args))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    if list_to is not None:
        list_to.write_text(json.dumps(done))
    return code


def _noted(call: Callable[[int], None], note: Callable[[str, Any], None]) -> Callable[[int], None]:
    def noted(descriptor: int) -> None:
        note("os.fsync", descriptor)
        call(descriptor)

    return noted


def _path_of(descriptor: Any) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor if isinstance(descriptor, int) else descriptor.fileno()}")
    except OSError:
        return ""
