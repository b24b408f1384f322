"""effssl sweep: search for settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from effssl.commands.parsing import parse_settings
from effssl.commands.pretrain import Pretrain
from effssl.runtime.errors import RequestError
from effssl.runtime.files import check_writable
from effssl.schema import merge, read_yaml


@dataclass(frozen=True)
class Sweep(Pretrain):
    """Search for settings by short runs, compared by kNN on validation images; test images are never used."""

    over: tuple[str, ...] = ()
    """settings and their values: lr=0.1,0.2 (a list), lr=0.05:1 or lr=0.05:1:log (ranges, for optuna)"""
    search: Literal["grid", "optuna"] = "grid"
    trials: int = 20
    """number of trials of --search optuna"""
    jobs: int = 2
    """trials of a grid at a time"""
    prune: bool = True
    """stop trials early that are below the median of the others (optuna's median pruner)"""


def sweep_(args: list[str]) -> None:
    """Parse the command line, run all trials and show them."""
    parsed, given = parse_settings(Sweep, args, "effssl sweep")
    from effssl.studies.sweep import Search, parse_range, run_sweep, show

    if not parsed.over:
        raise RequestError("--over is missing: name settings and their values, e.g. --over lr=0.1,0.2 epochs=3,6")
    if parsed.jobs < 1 or parsed.trials < 1:
        raise RequestError("--jobs and --trials are at least 1")
    if parsed.log:
        raise RequestError(f"a sweep uses no trackers; leave --log {parsed.log} out, or use it with effssl pretrain")
    ranges = [parse_range(text) for text in parsed.over]
    out = Path(parsed.out or "sweeps/first")
    check_writable(out)
    file = read_yaml(Path(parsed.config)) if parsed.config else {}
    flags = merge({key: value for key, value in file.items() if key != "versions"}, given)
    trials = run_sweep(flags, ranges, out, Search(parsed.search, parsed.trials, parsed.jobs, parsed.prune))
    show(trials, out)
