"""A run that fits into a given time: steps are timed before it, and counted anew as it proceeds.

effssl pretrain --data cifar10 --budget 10m

What a run does at a point depends on the share of it that is done: learning rate and side of the views. So the number
of steps may change on the way without disturbing anything, and a machine that turns out slower than it seemed gets a
shorter run, not a longer wait.
"""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass
from itertools import islice
from statistics import mean, median
from typing import Any

import torch

from effssl.config import Config
from effssl.data import Data
from effssl.recipes.budgets import RUNG
from effssl.recipes.resolve import Plan
from effssl.runtime.distribution import mean_over_ranks
from effssl.runtime.errors import RequestError
from effssl.training.trainer import Trainer

TIMING_POINTS = 20  # points of the run at which a step is timed
TIMED_STEPS = 3  # steps that are timed of each kind, after one that is not
EVALUATIONS = 0.05  # share of the budget that evaluations of the representation may take
MAX_INTERVAL = 20  # between two counts of what is left
SIDES = (128, 96, 64, 48, 32)  # views of photographs that are considered, the largest first
MIN_STEPS = 20  # steps that are a run
REPORT_SECONDS = 8.0  # seconds that are reserved for the report with its imports, but at most an eighth of the budget
MIN_EPOCHS = 20  # epochs that a run should have before larger views are worth their cost


@dataclass(frozen=True)
class StepCosts:
    """Seconds of a step at TIMING_POINTS points of a run, measured on this machine."""

    seconds: tuple[float, ...]
    steps_per_epoch: int

    @classmethod
    def measure(cls, plan: Plan, data: Data, device: torch.device) -> StepCosts:
        """Time some steps of a trainer that is thrown away afterwards."""
        trainer = Trainer(plan, data, device)
        return cls(tuple(timed_steps(trainer)), trainer.clock.steps_per_epoch)

    def mean(self, since: float = 0.0, until: float = 1.0) -> float:
        """Seconds of a step on average between two points of the run."""
        points = [since + (until - since) * (i + 0.5) / TIMING_POINTS for i in range(TIMING_POINTS)]
        return sum(self.seconds[min(TIMING_POINTS - 1, int(point * TIMING_POINTS))] for point in points) / TIMING_POINTS

    def steps(self, seconds: float, since: float = 0.0) -> int:
        """Steps from a point of the run on that fit into so many seconds."""
        return max(0, int(seconds / self.mean(since)))


class Budget:
    """So many seconds from `started` on, those of a report included."""

    def __init__(self, seconds: float, started: float, report: bool = False) -> None:
        self.seconds = seconds - (min(REPORT_SECONDS, seconds / 8) if report else 0.0)
        self.started = started
        self.costs = StepCosts((), 1)
        self.evaluation_seconds = 0.0  # of one evaluation
        self.evaluations = 1  # that are to come

    def elapsed(self) -> float:
        """Seconds of the budget that are gone, those of earlier attempts included."""
        return time.monotonic() - self.started

    def left(self) -> float:
        """Seconds that are left, the same on all processes."""
        return self.seconds - mean_over_ranks(self.elapsed())

    def fit(
        self, plan: Plan, data: Data, device: torch.device, choose_size: bool, before: Config | None = None
    ) -> Plan:
        """The plan with epochs and, if it is free, the side of its views, after timing steps here; its notes say why.

        A resumed run keeps what it chose `before`.
        """
        if before is not None:
            plan = keep_earlier_choices(plan, before, choose_size)
            self.costs = StepCosts.measure(plan, data, device)
            return plan
        if choose_size:
            plan = self._sized(plan, data, device)
        else:
            self.costs = StepCosts.measure(plan, data, device)
        left = self.left()
        steps = self.costs.steps(left)
        epochs = steps / self.costs.steps_per_epoch
        each, budget = f"a step takes {1000 * self.costs.mean():.0f} ms here", plan.config.budget
        if steps < MIN_STEPS:
            raise RequestError(
                f"{each}, {self.seconds - left:.0f} s of {budget} passed before training, and what is left is {steps} "
                "steps; use a longer budget"
            )
        notes = [self._choice(plan, steps, epochs, choose_size)]
        warmup = min(plan.config.schedule.warmup_epochs, epochs / 10)
        schedule = dataclasses.replace(plan.config.schedule, warmup_epochs=warmup)
        config = dataclasses.replace(plan.config, epochs=math.ceil(epochs), schedule=schedule)
        return dataclasses.replace(plan, config=config, notes=[*plan.notes, *notes])

    def _choice(self, plan: Plan, steps: int, epochs: float, choose_size: bool) -> str:
        """What the budget chose, and why, in one line."""
        config, chosen = plan.config, []
        if RUNG.fullmatch(config.recipe) and f"recipe {config.recipe}" not in plan.notes:  # not asked for by its name
            chosen.append(f"the recipe {config.recipe}, whose time is nearest on this machine")
        if choose_size:
            reason = f"the largest that leave {MIN_EPOCHS} epochs" if epochs >= MIN_EPOCHS else "the smallest"
            chosen.append(f"views of {config.image_size} pixels, {reason}")
        pace = f"a step takes {1000 * self.costs.mean():.0f} ms here"
        chosen.append(f"about {steps:,} steps or {epochs:.1f} epochs, because {pace}")
        return f"{config.budget} chose {'; '.join(chosen)}"

    def _sized(self, plan: Plan, data: Data, device: torch.device) -> Plan:
        """Time steps with the smallest views, and with the largest that should leave enough epochs: cost is as area."""
        for smallest in reversed(SIDES):
            sized = with_size(plan, smallest)
            try:
                self.costs = StepCosts.measure(sized, data, device)
                break
            except RequestError:  # an objective may need larger views
                if smallest == SIDES[0]:
                    raise
        room = self.costs.steps(self.left()) / self.costs.steps_per_epoch / MIN_EPOCHS
        side = next((side for side in SIDES if (side / smallest) ** 2 <= room), smallest)
        if side > smallest:
            sized = with_size(plan, side)
            self.costs = StepCosts.measure(sized, data, device)
        return sized

    def begin(self, trainer: Trainer, usual: int) -> int:
        """Called when training starts or is resumed; epochs between two evaluations, more where they cost much."""
        self.started -= trainer.position.elapsed
        self.evaluation_seconds = mean_over_ranks(trainer.position.evaluation_seconds)
        self.evaluations = 1
        if not trainer.finished:  # else the run had ended, but for its last file
            self.replan(trainer)
        epochs = max(1, trainer.clock.total_steps // trainer.clock.steps_per_epoch)
        affordable = max(1, int(EVALUATIONS * self.seconds / max(self.evaluation_seconds, 1e-9)))
        self.evaluations = min(affordable, max(1, epochs // usual))
        return max(usual, -(-epochs // self.evaluations))

    def due(self, trainer: Trainer) -> bool:
        """Whether steps are to be counted anew: fifty times in a run, every 20 steps of a long one, not at its end."""
        every = max(1, min(MAX_INTERVAL, trainer.clock.total_steps // 50))
        return not trainer.finished and trainer.steps_done % every == 0

    def replan(self, trainer: Trainer) -> None:
        """Set the number of steps by the pace of those that were taken."""
        taken, done = trainer.steps_done, trainer.clock.progress(trainer.steps_done)
        expected = taken * self.costs.mean(0.0, done)
        slower = trainer.seconds / expected if taken and expected else 1.0
        evaluations = self.evaluations - int(done * self.evaluations)
        left = (self.seconds - self.elapsed() - evaluations * self.evaluation_seconds) / max(slower, 1e-9)
        steps = max(taken + 1, taken + self.costs.steps(left, done))
        trainer.clock.set_total_steps(round(mean_over_ranks(steps)))


def with_size(plan: Plan, side: int) -> Plan:
    """The same plan with views of another size."""
    return dataclasses.replace(plan, config=dataclasses.replace(plan.config, image_size=side))


def keep_earlier_choices(plan: Plan, before: Config, choose_size: bool) -> Plan:
    """The plan with what an earlier attempt chose; everything else is as requested now, and can be compared."""
    schedule = dataclasses.replace(plan.config.schedule, warmup_epochs=before.schedule.warmup_epochs)
    chosen: dict[str, Any] = {"epochs": before.epochs, "schedule": schedule}
    chosen |= {"image_size": before.image_size} if choose_size else {}
    return dataclasses.replace(plan, config=dataclasses.replace(plan.config, **chosen))


def timed_steps(trainer: Trainer) -> list[float]:
    """Seconds of a step, its views included, at points of a run; the trainer is spent by that."""
    clock, loader = trainer.clock, trainer.loader
    clock.set_total_steps(clock.steps_per_epoch * TIMING_POINTS)
    # Workers decode ahead: only after more batches than they keep ready does one see how fast they are.
    ahead = 2 * loader.workers if loader.images.from_files else 0
    known: dict[str, float] = {}
    costs = []
    for epoch in range(TIMING_POINTS):
        kind = str(loader.sides(epoch * clock.steps_per_epoch))
        if kind not in known:
            times = []
            started = time.perf_counter()
            for views in islice(loader.epoch(epoch), 1 + ahead + TIMED_STEPS):
                float(trainer.step(views)[0])  # waits for the device
                times.append(time.perf_counter() - started)
                started = time.perf_counter()
            some = times[1 + ahead :] or times[1:] or times
            known[kind] = mean_over_ranks(mean(some) if ahead else median(some))
        costs.append(known[kind])
    return costs
