"""Search for settings, by a grid or by optuna's sampler, scored by the validation kNN of short runs.

effssl sweep --data cifar10 --subset 10000 --objective byol+rotation --epochs 3 \
    --over rotation.weight=0.1,0.2,0.4 lr=0.1,0.2 --out sweeps/weight

Test images are never used. optuna's median pruner stops trials early; a sweep that was stopped resumes when repeated.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from effssl.recipes import resolve
from effssl.run import RunFolder
from effssl.runtime.errors import RequestError
from effssl.runtime.files import write_atomically
from effssl.runtime.pool import Pool
from effssl.runtime.progress import say, table
from effssl.runtime.reading import read_json
from effssl.schema import digest, flatten, merge, nest, parse_yaml, to_dict
from effssl.studies.arm import child_job

if TYPE_CHECKING:
    import optuna

MIN_TRIALS = 3  # finished trials that a new one is compared with before it may be pruned
WARMUP = 1 / 3  # share of a trial before which it is not pruned


# ---------------------------------------------------------------------------------------------------------------
# What to search


@dataclass(frozen=True)
class Range:
    """The values of one setting: a list, or an interval."""

    name: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False


@dataclass(frozen=True)
class Search:
    """How to search."""

    method: str = "grid"  # or "optuna"
    trials: int = 20  # of optuna; a grid has as many as it has points
    jobs: int = 2  # trials of a grid at a time; optuna's are one after another, so that each can learn from the last
    prune: bool = True


def parse_range(text: str) -> Range:
    """`lr=0.1,0.2` is a list of values, `lr=0.05:1` an interval, `lr=0.05:1:log` an interval on a logarithmic scale.

    >>> parse_range("lr=0.1,1e-3").values
    (0.1, 0.001)
    >>> parse_range("lr=0.05:1:log").log
    True
    """
    name, _, given = text.partition("=")
    name = name.strip().lstrip("-").replace("-", "_")
    if not name or not given:
        raise RequestError(f"--over {text!r}: write a setting and its values, e.g. lr=0.1,0.2 or lr=0.05:1:log")
    if ":" in given:
        low, high, *rest = given.split(":")
        try:
            found = Range(name, (), float(low), float(high), rest == ["log"])
        except ValueError:
            raise RequestError(f"--over {text!r}: a range is low:high or low:high:log") from None
        if not found.low < found.high or (found.log and found.low <= 0) or rest not in ([], ["log"]):
            raise RequestError(f"--over {text!r}: a range is low:high or low:high:log, with low below high")
        return found
    return Range(name, tuple(_value(value) for value in re.split(r",(?![^\[]*\])", given)))  # [0,90] is one value


def _value(text: str) -> Any:
    """A number as Python reads it (YAML reads 1e-3 as a string), anything else as YAML does."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    try:
        return parse_yaml(text)
    except ValueError:
        raise RequestError(f"--over: {text!r} is not a value") from None


def grid(ranges: Sequence[Range]) -> Iterator[dict[str, Any]]:
    """Every combination of values."""
    if any(not r.values for r in ranges):
        raise RequestError("a grid needs values (lr=0.1,0.2); ranges (lr=0.05:1) need --search optuna")
    for values in itertools.product(*(r.values for r in ranges)):
        yield dict(zip((r.name for r in ranges), values, strict=True))


# ---------------------------------------------------------------------------------------------------------------
# One trial


class Trial:
    """One point of the search: a run in the folder of its configuration, and its state in a JSON file beside it.

    `asked` is optuna's trial, which the validation scores are reported to; None without pruning.
    """

    def __init__(
        self, flags: Mapping[str, Any], tried: Mapping[str, Any], out: Path, asked: optuna.Trial | None = None
    ) -> None:
        self.tried = dict(tried)
        self.flags = merge({"health": {"every": 1}}, merge(flags, nest(tried)))
        config = resolve(self.flags).config  # refuses wrong settings before anything runs
        unknown = set(tried) - set(flatten(to_dict(config)))
        if unknown:
            raise RequestError(f"--over: no setting is called {', '.join(sorted(unknown))}")
        self.folder = out / "trials" / digest(config)
        self.epochs = config.epochs
        self.asked = asked
        self._reported: set[int] = set()

    @property
    def state(self) -> dict[str, Any]:
        """State (new, finished, pruned, failed), why, and the curve so far."""
        path = self.folder.with_suffix(".json")
        try:
            found = read_json(path) if path.exists() else {}
        except (OSError, ValueError):  # damaged: the trial runs again, and finds its run finished
            found = {}
        return found if _is_state(found) else {"state": "new"}

    def save(self, state: str, why: str = "") -> None:
        """Write the state to disk."""
        found = {"state": state, "why": why, "tried": self.tried, "curve": self.curve()}
        write_atomically(self.folder.with_suffix(".json"), json.dumps(found, indent=1) + "\n")

    def done(self, prune: bool) -> bool:
        """Whether the trial need not run (again)."""
        return self.state["state"] == "finished" or (prune and self.state["state"] == "pruned")

    def curve(self) -> dict[str, float]:
        """Validation kNN by epoch."""
        if not (self.folder / "config.yaml").is_file():  # it has just been started
            return {}
        return {
            str(line["epoch"]): line["knn"] for line in RunFolder(self.folder).metrics() if line.get("knn") is not None
        }

    @property
    def score(self) -> float | None:
        """The final validation kNN of a finished trial."""
        curve = self.state.get("curve", {})
        return curve[max(curve, key=int)] if self.state["state"] == "finished" and curve else None

    def should_prune(self) -> str:
        """Report new scores to optuna; why its pruner wants to stop the trial, or nothing."""
        curve = self.curve()
        self._report(curve)
        epoch = max(map(int, curve), default=0)
        if self.asked is None or not WARMUP * self.epochs <= epoch < self.epochs or not self.asked.should_prune():
            return ""
        return f"kNN {curve[str(epoch)]:.1f} at epoch {epoch} is below the median of the finished trials"

    def tell(self, study: optuna.Study | None) -> None:
        """Tell optuna how the trial ended."""
        if study is None or self.asked is None:
            return
        from optuna.trial import TrialState

        self._report(self.state.get("curve", {}))
        states = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
        study.tell(self.asked, self.score, state=states[self.state["state"]])

    def _report(self, curve: Mapping[str, float]) -> None:
        for epoch, knn in curve.items():
            if self.asked is not None and int(epoch) not in self._reported:
                self._reported.add(int(epoch))
                self.asked.report(knn, int(epoch))


def _is_state(found: Any) -> bool:
    """Whether a value read from JSON is the state of a trial, with scores by epoch."""
    if not isinstance(found, dict) or found.get("state") not in ("finished", "pruned", "failed"):
        return False
    curve = found.get("curve", {})
    return isinstance(curve, dict) and all(
        epoch.isascii() and epoch.isdigit() and type(value) in (int, float) and abs(value) <= sys.float_info.max
        for epoch, value in curve.items()
    )


# ---------------------------------------------------------------------------------------------------------------
# All trials


def run_sweep(
    flags: Mapping[str, Any], ranges: Sequence[Range], out: Path, search: Search | None = None
) -> list[Trial]:
    """Run all trials that are not done; return them sorted by score, the best first."""
    search = search or Search()
    check_folder(out)
    run = _grid_trials if search.method == "grid" else _sampled_trials
    trials = list(run(flags, ranges, out, search))
    return sorted(trials, key=lambda trial: -math.inf if trial.score is None else trial.score, reverse=True)


def check_folder(out: Path) -> None:
    """Refuse a folder whose files a sweep would replace: a run's, a study's or anybody's results.json."""
    if (out / "config.yaml").exists():
        raise RequestError(f"{out} is a run folder; choose another --out for the sweep")
    path = out / "results.json"
    if not path.exists():
        return
    try:
        found = read_json(path)
    except (OSError, ValueError):
        found = None
    trials = found if isinstance(found, list) else [None]
    if not all(isinstance(trial, dict) and {"tried", "state"} <= trial.keys() for trial in trials):
        raise RequestError(f"{path} is not the result of a sweep and would be replaced; choose another --out")


def create_study(search: Search) -> optuna.Study | None:
    """optuna's study with its median pruner; None for a grid without pruning, which needs no optuna."""
    if search.method == "grid" and not search.prune:
        return None
    try:
        import optuna
    except ImportError:
        raise RequestError(
            "pruning and --search optuna need optuna: pip install 'effssl[sweep]', or use a grid with --no-prune"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    median = optuna.pruners.MedianPruner(n_startup_trials=MIN_TRIALS, n_min_trials=MIN_TRIALS)
    pruner = median if search.prune else optuna.pruners.NopPruner()
    return optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0), pruner=pruner)


def suggest(asked: optuna.Trial, ranges: Sequence[Range]) -> dict[str, Any]:
    """The values that optuna wants to be tried; values of a list are coded as JSON, since optuna takes no lists."""
    found: dict[str, Any] = {}
    for r in ranges:
        if r.values:
            found[r.name] = json.loads(asked.suggest_categorical(r.name, [json.dumps(value) for value in r.values]))
        else:
            found[r.name] = asked.suggest_float(r.name, r.low, r.high, log=r.log)
    return found


def _grid_trials(flags: Mapping[str, Any], ranges: Sequence[Range], out: Path, search: Search) -> list[Trial]:
    """All points of the grid, some at a time; those that are done first, since others are compared with them."""
    study = create_study(search)
    trials = []
    for point in grid(ranges):
        asked = None
        if study is not None:
            study.enqueue_trial({name: json.dumps(value) for name, value in point.items()})
            asked = study.ask()
            suggest(asked, ranges)  # the enqueued values
        trials.append(Trial(flags, point, out, asked))
    done = [trial for trial in trials if trial.done(search.prune)]
    for trial in done:
        trial.tell(study)
    _run_trials([trial for trial in trials if trial not in done], study, search.jobs)
    return trials


def _sampled_trials(flags: Mapping[str, Any], ranges: Sequence[Range], out: Path, search: Search) -> Iterator[Trial]:
    """Trials that optuna's TPE sampler asks for, one after another.

    The sampler is seeded, so a repeated sweep asks for the same trials and finds them done.
    """
    study = create_study(search)
    assert study is not None
    for _ in range(search.trials):
        asked = study.ask()
        trial = Trial(flags, suggest(asked, ranges), out, asked)
        if trial.done(search.prune):
            trial.tell(study)
        else:
            _run_trials([trial], study, jobs=1)
        yield trial


def _run_trials(trials: Sequence[Trial], study: optuna.Study | None, jobs: int) -> None:
    by_name = {str(trial.folder): trial for trial in trials}
    children = [
        child_job(name, trial.flags, trial.folder, should_stop=trial.should_prune) for name, trial in by_name.items()
    ]
    with Pool(jobs) as pool:
        for result in pool.run(children):
            trial = by_name[result.job.name]
            if result.stopped:
                trial.save("pruned", result.stopped)
            elif result.error:
                trial.save("failed", result.error)
            elif not trial.curve():
                raise RequestError("a sweep compares by kNN on validation images; these images have no labels")
            else:
                trial.save("finished")
            trial.tell(study)
            text = ", ".join(f"{name} {value}" for name, value in trial.tried.items())
            say(f"{text}: {trial.state['state']} {trial.state['why'] or f'kNN {trial.score:.2f}'}")


def show(trials: Sequence[Trial], out: Path) -> None:
    """Print the table and the best settings as flags; write all of it to results.json."""
    names = list(trials[0].tried)
    rows = [
        (*(str(t.tried[name]) for name in names), "" if t.score is None else f"{t.score:.2f}", t.state["state"])
        for t in trials
    ]
    table("validation kNN, the best first", (*names, "kNN %", ""), rows)
    found = [{"tried": t.tried, "score": t.score, **t.state} for t in trials]
    write_atomically(out / "results.json", json.dumps(found, indent=1) + "\n")
    best = trials[0]
    if best.score is not None:
        print("best: " + " ".join(f"--{name.replace('_', '-')} {value}" for name, value in best.tried.items()))
