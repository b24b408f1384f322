"""Try settings: a grid, or a search by optuna, scored by the validation kNN of short runs.

effssl sweep --data cifar10 --subset 10000 --objective byol+rotation --epochs 3 \
    --over rotation.weight=0.1,0.2,0.4 lr=0.1,0.2 --out sweeps/weight

Test images are never looked at. A trial that falls behind the others is ended early; a sweep that was stopped goes on
when repeated.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from effssl.config import digest, flatten, merge, nest, to_dict
from effssl.recipes import resolve
from effssl.run import Run
from effssl.runtime.errors import RequestError
from effssl.runtime.files import write_atomically
from effssl.runtime.processes import child_command, child_environment, last_words
from effssl.runtime.progress import say, table

ENOUGH = 3  # trials that a new one is compared with before it may be ended early
FIRST_CUT = 1 / 3  # share of a trial before which it is left alone
POLL = 0.5  # seconds between two looks at a running trial


@dataclass(frozen=True)
class Range:
    """What one setting may be: some values, or anything between two."""

    name: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False


def parse_range(text: str) -> Range:
    """`lr=0.1,0.2` is two values, `lr=0.05:1` anything between, `lr=0.05:1:log` evenly over orders of magnitude.

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
    """A number as Python reads it (YAML takes 1e-3 for a word), anything else as YAML does."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise RequestError(f"--over: {text!r} is not a value") from None


class Trial:
    """One setting: a run in a folder of its own, named by the hash of its complete config."""

    def __init__(self, flags: Mapping[str, Any], tried: Mapping[str, Any], out: Path) -> None:
        self.tried = dict(tried)
        self.flags = merge({"health": {"every": 1}}, merge(flags, nest(tried)))
        config = resolve(self.flags).config  # what cannot be is refused before anything runs
        unknown = set(tried) - set(flatten(to_dict(config)))
        if unknown:
            raise RequestError(f"--over: no setting is called {', '.join(sorted(unknown))}")
        self.folder, self.epochs = out / "trials" / digest(config), config.epochs

    @property
    def state(self) -> dict[str, Any]:
        """What is known of it: state (new, finished, pruned, failed), and why."""
        path = self.folder.with_suffix(".json")
        return json.loads(path.read_text()) if path.exists() else {"state": "new"}

    def keep(self, state: str, why: str = "") -> None:
        """Write down what became of it."""
        found = {"state": state, "why": why, "tried": self.tried, "curve": self.curve()}
        write_atomically(self.folder.with_suffix(".json"), json.dumps(found, indent=1) + "\n")

    def curve(self) -> dict[str, float]:
        """Validation kNN by epoch."""
        if not (self.folder / "config.yaml").is_file():  # it has just been started
            return {}
        return {str(line["epoch"]): line["knn"] for line in Run(self.folder).metrics() if line.get("knn") is not None}

    @property
    def score(self) -> float | None:
        """The last validation kNN of a finished trial."""
        curve = self.state.get("curve", {})
        return curve[max(curve, key=int)] if self.state["state"] == "finished" and curve else None

    def run(self, others: Sequence[Trial], prune: bool, jobs: int) -> None:
        """Train; end it early where it is behind the median of the others at the same epoch."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        config, said = self.folder.with_suffix(".yaml"), self.folder.with_suffix(".err")
        write_atomically(config, yaml.safe_dump(self.flags))
        command = child_command(
            "pretrain", "--config", str(config), "--out", str(self.folder), "--resume", "auto", "--quiet", "--no-report"
        )
        with said.open("w") as errors:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=child_environment(jobs))
            try:
                while process.poll() is None:
                    time.sleep(POLL)
                    behind = self._behind(others) if prune else ""
                    if behind and process.poll() is None:
                        process.send_signal(signal.SIGTERM)  # it saves itself, should anybody want it after all
                        process.wait()
                        self.keep("pruned", behind)
                        return
            except BaseException:
                process.terminate()
                raise
        if process.returncode:
            self.keep("failed", last_words(said.read_text(), process.returncode))
        elif not self.curve():
            raise RequestError("a sweep compares by kNN on validation images; these images have no labels")
        else:
            self.keep("finished")
            said.unlink()

    def _behind(self, others: Sequence[Trial]) -> str:
        curve = self.curve()
        epoch = max(map(int, curve), default=0)
        if not FIRST_CUT * self.epochs <= epoch < self.epochs:
            return ""
        theirs = [o.state["curve"][str(epoch)] for o in others if str(epoch) in o.state.get("curve", {})]
        if len(theirs) < ENOUGH or curve[str(epoch)] >= median(theirs):
            return ""
        return (
            f"kNN {curve[str(epoch)]:.1f} at epoch {epoch}, the median of {len(theirs)} others was {median(theirs):.1f}"
        )


def grid(ranges: Sequence[Range]) -> Iterator[dict[str, Any]]:
    """Every combination."""
    if any(not r.values for r in ranges):
        raise RequestError("a grid needs values (lr=0.1,0.2); ranges (lr=0.05:1) go with --search optuna")
    for values in itertools.product(*(r.values for r in ranges)):
        yield dict(zip((r.name for r in ranges), values, strict=True))


def run_sweep(
    flags: Mapping[str, Any], ranges: Sequence[Range], out: Path, search: str = "grid", trials: int = 20, jobs: int = 2,
    prune: bool = True,
) -> list[Trial]:  # fmt: skip
    """Run all trials that are not done; the best first."""
    if search == "grid":
        every = [Trial(flags, tried, out) for tried in grid(ranges)]
        with ThreadPoolExecutor(jobs) as pool:
            running = [pool.submit(_one, trial, every, prune, jobs) for trial in every]
            try:
                for one in running:
                    one.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    else:
        every = list(_searched(flags, ranges, out, trials, prune))
    return sorted(every, key=lambda trial: -math.inf if trial.score is None else trial.score, reverse=True)


def _one(trial: Trial, every: Sequence[Trial], prune: bool, jobs: int) -> None:
    if trial.state["state"] == "finished" or (prune and trial.state["state"] == "pruned"):
        return
    trial.run([other for other in every if other is not trial], prune, jobs)
    text = ", ".join(f"{name} {value}" for name, value in trial.tried.items())
    say(f"{text}: {trial.state['state']} {trial.state['why'] or f'kNN {trial.score:.2f}'}")


def _searched(
    flags: Mapping[str, Any], ranges: Sequence[Range], out: Path, trials: int, prune: bool
) -> Iterator[Trial]:
    """Trials that optuna's TPE sampler asks for, one after another; those of an earlier start are told to it first."""
    try:
        import optuna
    except ImportError:
        raise RequestError("--search optuna needs optuna: pip install optuna") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    done: list[Trial] = []
    for _ in range(trials):
        asked = study.ask()
        tried = {
            r.name: asked.suggest_categorical(r.name, r.values)
            if r.values
            else asked.suggest_float(r.name, r.low, r.high, log=r.log)
            for r in ranges
        }
        trial = Trial(flags, tried, out)  # the sampler is seeded, so a repeated sweep asks the same and finds it done
        _one(trial, [*done, trial], prune, 1)
        states = {"pruned": optuna.trial.TrialState.PRUNED, "failed": optuna.trial.TrialState.FAIL}
        for epoch, knn in trial.state.get("curve", {}).items():
            asked.report(knn, int(epoch))  # what the sampler learns from a trial that was ended early
        study.tell(asked, trial.score, state=states.get(trial.state["state"]))
        done.append(trial)
        yield trial


def show(trials: Sequence[Trial], out: Path) -> None:
    """The table, the best settings as flags, and a file with all of it."""
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
