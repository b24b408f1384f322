"""effssl sweep: try settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from effssl.commands.pretrain import Pretrain, given
from effssl.config import merge, read_yaml
from effssl.runtime.errors import RequestError
from effssl.runtime.files import check_room


@dataclass(frozen=True)
class Sweep(Pretrain):
    """Try settings in short runs and compare them by kNN on validation images; test images are never looked at."""

    over: tuple[str, ...] = ()
    """settings and what to try: lr=0.1,0.2 (values), lr=0.05:1 or lr=0.05:1:log (ranges, for optuna)"""
    search: Literal["grid", "optuna"] = "grid"
    trials: int = 20
    """how many settings optuna tries"""
    jobs: int = 2
    """runs of a grid at a time"""
    prune: bool = True
    """end trials early that are behind the median of the others"""


def sweep_(args: list[str]) -> None:
    """Read the command line, run all trials and show them."""
    import tyro

    parsed = tyro.cli(Sweep, args=args, prog="effssl sweep")
    from effssl.studies.sweep import parse_range, run_sweep, show

    if not parsed.over:
        raise RequestError("say what to try, e.g. --over lr=0.1,0.2 rotation.weight=0.1,0.4")
    if parsed.jobs < 1 or parsed.trials < 1:
        raise RequestError("--jobs and --trials are at least 1")
    if parsed.tensorboard:
        raise RequestError("a sweep writes no event files; --tensorboard goes with effssl pretrain")
    out, ranges = Path(parsed.out or "sweeps/first"), [parse_range(text) for text in parsed.over]
    check_room(out)
    file = read_yaml(Path(parsed.config)) if parsed.config else {}
    flags = merge({key: value for key, value in file.items() if key != "versions"}, given(parsed, args))
    trials = run_sweep(flags, ranges, out, parsed.search, parsed.trials, parsed.jobs, parsed.prune)
    show(trials, out)
