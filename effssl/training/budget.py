"""A run that fits into a given time: steps are timed before it, and counted anew as it goes.

effssl pretrain --data cifar10 --budget 10m

What a run does at a point depends on the share of it that is done: the learning rate, the side of the views, whether
a task takes part. So the number of steps may change on the way without disturbing anything, and a machine that turns
out slower than it seemed gets a shorter run, not a longer wait.
"""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from statistics import mean, median
from typing import TYPE_CHECKING, Any

import torch

from effssl.data.sets import FolderImages
from effssl.data.views import Views
from effssl.objectives.expression import parse
from effssl.runtime.distribution import mean_over_processes
from effssl.runtime.errors import RequestError

if TYPE_CHECKING:
    from effssl.config import Config
    from effssl.data import Data
    from effssl.recipes import Plan
    from effssl.training.loop import Trainer

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
POINTS = 20  # points of the run at which a step is timed
TIMED = 3  # steps that are timed of each kind, after one that is not
LOOKS = 0.05  # share of the budget that may be spent on looking how the run is doing
MOST_STEPS = 20  # between two counts of what is left
SIDES = (128, 96, 64, 48, 32)  # views of photographs that are considered, the largest first
FEWEST = 20  # steps that are a run
CHEAP_SIZE = 0.5  # of rotated views, as a share of the others' side
REPORT = 5.0  # seconds that are kept for drawing the report, but at most a twentieth of the budget
ENOUGH = 20  # epochs that a run should have before larger views are worth their price


def parse_budget(text: str) -> float:
    """Seconds of a budget like 90s, 10m, 2h or 1h30m.

    >>> parse_budget("10m"), parse_budget("1h30m"), parse_budget("1.5h")
    (600.0, 5400.0, 5400.0)
    """
    parts = re.fullmatch(r"(?:\d+(?:\.\d+)?[smhd])+", text.strip())
    if not parts:
        raise RequestError(f"a budget of {text!r} is not a time; write 90s, 10m, 2h or 1h30m")
    seconds = sum(float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+)([smhd])", text))
    if seconds <= 0:
        raise RequestError("a budget of no time leaves nothing to train in")
    return seconds


class Budget:
    """So many seconds from `started` on, those of a report included, and what a step costs at each point of the run."""

    def __init__(self, seconds: float, started: float, report: bool = False) -> None:
        self.seconds, self.started = seconds - (min(REPORT, seconds / 20) if report else 0.0), started
        self.costs: list[float] = []  # seconds of a step at POINTS points of the run
        self.look = 0.0  # seconds of a look
        self.looks = 1  # that are to come
        self.steps_per_epoch = 1

    def elapsed(self) -> float:
        """Seconds of the budget that are gone, those of earlier attempts included."""
        return time.monotonic() - self.started

    def choose(
        self,
        plan: Plan,
        data: Data,
        device: torch.device,
        free: Mapping[str, bool],
        before: Config | None = None,
    ) -> Plan:
        """The plan with epochs, side of its views and form of its task, after timing steps here; its notes say why.

        `free` tells whether size and task are to be chosen, or were said by the user. A run that goes on keeps what it
        chose `before`.
        """
        from effssl.training.loop import Trainer

        def timed(plan: Plan, **changes: Any) -> Plan:
            plan = dataclasses.replace(plan, config=dataclasses.replace(plan.config, **changes))
            trainer = Trainer(plan, data, device)
            self.costs, self.steps_per_epoch = timed_steps(trainer), trainer.loader.steps
            return plan

        if before is not None:
            return timed(as_chosen(plan, before, free))
        notes = []
        terms = parse(plan.config.objective)
        rotation = plan.config.rotation
        cheap_already = rotation.size and not rotation.update_stats
        if free["task"] and len(terms) > 1 and "rotation" in terms and not cheap_already:
            cheap = dataclasses.replace(rotation, size=CHEAP_SIZE, update_stats=False)
            cheaper = dataclasses.replace(plan, config=dataclasses.replace(plan.config, rotation=cheap))
            with suppress(RequestError):  # some encoders take images of one size only
                Trainer(cheaper, data, device)
                plan = cheaper
                notes.append("rotated views of half the side: at equal cost they gain more than full-sized ones")
        plan = self._sized(plan, timed) if free["size"] else timed(plan)
        gone = everywhere(self.elapsed())
        steps = self._steps(0.0, self.seconds - gone)
        epochs = steps / self.steps_per_epoch
        each = f"a step takes {1000 * self._mean(0.0):.0f} ms here"
        if steps < FEWEST:
            raise RequestError(
                f"{each}, {gone:.0f} s of {plan.config.budget} went by before training, and what is left holds {steps} "
                "steps; give it more time"
            )
        notes = [
            *notes,
            f"{each} on average, so {plan.config.budget} hold about {steps:,} steps or {epochs:.1f} epochs",
        ]
        if free["size"]:
            side = plan.config.image_size
            notes.append(
                f"views of {side} pixels, the largest of {SIDES} that should leave {ENOUGH} epochs, if one does"
            )
        warmup = min(plan.config.schedule.warmup_epochs, epochs / 10)
        schedule = dataclasses.replace(plan.config.schedule, warmup_epochs=warmup)
        config = dataclasses.replace(plan.config, epochs=math.ceil(epochs), schedule=schedule)
        return dataclasses.replace(plan, config=config, notes=[*plan.notes, *notes])

    def _sized(self, plan: Plan, timed: Callable[..., Plan]) -> Plan:
        """Time steps with the smallest views, and with the largest that should leave enough epochs: cost is as area."""
        for smallest in reversed(SIDES):
            try:
                made = timed(plan, image_size=smallest)
                break
            except RequestError:  # an objective may need larger views
                if smallest == SIDES[0]:
                    raise
        steps = self._steps(0.0, self.seconds - everywhere(self.elapsed()))
        room = steps / self.steps_per_epoch / ENOUGH
        side = next((side for side in SIDES if (side / smallest) ** 2 <= room), smallest)
        return made if side <= smallest else timed(plan, image_size=side)

    def due(self, trainer: Trainer) -> bool:
        """Whether steps are to be counted anew: fifty times in a run, and every 20 steps of a long one."""
        return trainer.steps_done % max(1, min(MOST_STEPS, trainer.total_steps // 50)) == 0

    def begin(self, trainer: Trainer, usual: int) -> int:
        """Called when training starts or goes on; epochs between two looks, fewer than usual where they cost much."""
        at = trainer.position
        self.started -= at.elapsed
        self.look = everywhere(at.look)
        self.looks = 1
        if trainer.steps_done < trainer.total_steps:  # else the run had ended, but for its last file
            self.plan_again(trainer, 0.0)
        epochs = max(1, trainer.total_steps // trainer.loader.steps)
        affordable = max(1, int(LOOKS * self.seconds / max(self.look, 1e-9)))
        self.looks = min(affordable, max(1, epochs // usual))
        return max(usual, -(-epochs // self.looks))

    def plan_again(self, trainer: Trainer, seconds: float) -> None:
        """Set the number of steps by the pace of those that were taken in `seconds`."""
        taken, done = trainer.steps_done, trainer.done(trainer.steps_done)
        expected = taken * self._mean(0.0, done)
        slower = seconds / expected if seconds and expected else 1.0
        looks = self.looks - int(done * self.looks)
        left = (self.seconds - self.elapsed() - looks * self.look) / max(slower, 1e-9)
        trainer.position.total = round(everywhere(max(taken + 1, taken + self._steps(done, left))))

    def _mean(self, since: float, until: float = 1.0) -> float:
        """Seconds of a step on average between two points of the run."""
        points = [since + (until - since) * (i + 0.5) / POINTS for i in range(POINTS)]
        return sum(self.costs[min(POINTS - 1, int(point * POINTS))] for point in points) / POINTS

    def _steps(self, done: float, seconds: float) -> int:
        """Steps that fit into the seconds that are left."""
        return max(0, int(seconds / self._mean(done)))


def as_chosen(plan: Plan, before: Config, free: Mapping[str, bool]) -> Plan:
    """The plan with what an earlier attempt chose; everything else is as asked now, and can be compared."""
    schedule = dataclasses.replace(plan.config.schedule, warmup_epochs=before.schedule.warmup_epochs)
    chosen: dict[str, Any] = {"epochs": before.epochs, "schedule": schedule}
    chosen |= {"image_size": before.image_size} if free["size"] else {}
    chosen |= {"rotation": before.rotation} if free["task"] else {}
    return dataclasses.replace(plan, config=dataclasses.replace(plan.config, **chosen))


def everywhere(value: float) -> float:
    """The mean over processes, so that all decide alike."""
    return float(mean_over_processes({"": torch.tensor(float(value), dtype=torch.float64)})[""])


def timed_steps(trainer: Trainer) -> list[float]:
    """Seconds of a step, its views included, at points of a run; the trainer is spent by that."""
    loader = trainer.loader
    trainer.position.total = loader.steps * POINTS
    # Workers decode ahead: only after more batches than they keep ready does one see how fast they are.
    ahead = 2 * loader.workers if isinstance(loader.images, FolderImages) else 0
    known: dict[str, float] = {}
    costs = []
    for epoch in range(POINTS):
        first = epoch * loader.steps
        asked = Views([], torch.empty(0), step=first, done=trainer.done(first))
        kind = f"{trainer.objective.present(asked)} {loader.sides(first)}"
        if kind not in known:
            times = []
            started = time.perf_counter()
            for views in islice(loader.epoch(epoch), 1 + ahead + TIMED):
                float(trainer.step(views)[0])  # waits for the device
                times.append(time.perf_counter() - started)
                started = time.perf_counter()
            some = times[1 + ahead :] or times[1:] or times
            known[kind] = everywhere(mean(some) if ahead else median(some))
        costs.append(known[kind])
    return costs
