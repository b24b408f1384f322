"""effssl pretrain: train an encoder on images without labels."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import time
from dataclasses import dataclass
from typing import Any, Literal

from effssl.config import Config

STARTED = time.monotonic()  # about when the command was given: a time budget counts from here


@dataclass(frozen=True)
class Pretrain(Config):
    """Train an encoder on images without labels.

    The objective is a weighted sum of terms, e.g. byol+rotation or "simclr + 0.5*rotation". What is not said comes
    from the recipe that fits the data, the objective and the machine. Options of a term are --TERM.OPTION.
    """

    out: str = ""
    """run folder to make; default runs/<data>-<terms>-<seed>"""
    resume: Literal["never", "auto"] = "never"
    """auto goes on where the run in --out stopped, or starts it"""
    config: str = ""
    """a YAML file with settings, e.g. another run's config.yaml; flags win over it"""
    quiet: bool = False
    """show nothing but problems"""
    report: bool = True
    """draw report.html in the run folder at the end"""
    tensorboard: bool = False
    """also write event files for TensorBoard into the run folder"""


NOT_SETTINGS = (
    "out", "resume", "config", "quiet", "report", "tensorboard", "over", "search", "trials", "jobs", "prune",
)  # fmt: skip


def pretrain_(args: list[str]) -> None:
    """Read the command line and train."""
    import tyro

    parsed = tyro.cli(Pretrain, args=args, default=_defaults(args), prog="effssl pretrain")
    from effssl.training.pretraining import execute

    said = given(parsed, args)
    started = STARTED if args == sys.argv[2:] else None  # called from Python, the command begins now
    run = execute(
        said, parsed.out or None, parsed.resume, parsed.config or None, parsed.quiet, started, parsed.report,
        parsed.tensorboard,
    )  # fmt: skip
    if not parsed.quiet and os.environ.get("RANK", "0") == "0":
        folder, report = shlex.quote(str(run.folder)), run.folder / "report.html"
        if "knn" in run.metrics()[-1] and run.config.labels != "folders":  # sub-folders alone hold no test images
            use = f"effssl eval knn {folder}"
        else:
            look = f"open {shlex.quote(str(report))}, or " if report.is_file() else ""
            use = f"{look}effssl outliers {folder} --data {shlex.quote(parsed.data or run.config.data)}"
        print(f"done: {run.folder}   next: {use}")


def _defaults(args: list[str]) -> Pretrain:
    """The defaults that --help shows: those of the recipe that the rest of the command line leads to."""
    from effssl.recipes import resolve

    if not {"-h", "--help"} & set(args):
        return Pretrain()
    flags = {name: _value_after(args, f"--{name}") for name in ("data", "objective", "recipe", "form")}
    plan = resolve({name: value for name, value in flags.items() if value})
    config = {f.name: getattr(plan.config, f.name) for f in dataclasses.fields(Config)}
    return Pretrain(**config | {"recipe": flags["recipe"] or "auto"})


def _value_after(args: list[str], flag: str) -> str:
    for i, arg in enumerate(args):
        if arg == flag and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith(f"{flag}="):
            return arg.split("=", 1)[1]
    return ""


def given(parsed: Any, args: list[str]) -> dict[str, Any]:
    """Of a parsed command line, only what was really written, as nested mappings."""
    said = {arg[2:].split("=", 1)[0].replace("-", "_") for arg in args if arg.startswith("--")}
    said |= {_positive(name) for name in said}

    def pick(node: Any, prefix: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for item in dataclasses.fields(node):
            value, name = getattr(node, item.name), f"{prefix}{item.name}"
            if dataclasses.is_dataclass(value):
                if inner := pick(value, f"{name}."):
                    values[item.name] = inner
            elif name in said and name not in NOT_SETTINGS:
                values[item.name] = value
        return values

    return pick(parsed, "")


def _positive(name: str) -> str:
    """tyro writes a false flag as --no-x or --group.no-x."""
    *groups, last = name.split(".")
    return ".".join([*groups, last.removeprefix("no_")])
