"""The clock of a run: how many steps it has, and what depends on how far it is."""

from __future__ import annotations

from dataclasses import dataclass

from effssl.config import Config, Schedule
from effssl.schedules import cosine, linear_warmup, step_decay

SMALLEST_SIDE = 8  # of views that grow, unless images are smaller


@dataclass
class Clock:
    """Steps of a run, and from them learning rate and side of the views.

    A time budget changes the number of steps on the way. Everything depends on the share of the run that is done, so
    nothing else is disturbed by that.
    """

    lr: float
    schedule: Schedule
    image_size: int
    steps_per_epoch: int
    total_steps: int

    @classmethod
    def of(cls, config: Config, images: int) -> Clock:
        """The clock of a run as configured, on so many training images; a last partial batch is dropped."""
        steps_per_epoch = images // config.batch_size
        total = config.epochs * steps_per_epoch
        return cls(config.lr, config.schedule, config.image_size, steps_per_epoch, total)

    def set_total_steps(self, total: int) -> None:
        """Make the run longer or shorter."""
        self.total_steps = total

    @property
    def epochs(self) -> int:
        """Epochs of the run, the last one perhaps not whole."""
        return -(-self.total_steps // self.steps_per_epoch)

    def progress(self, step: int) -> float:
        """The share of the run before a step, or of the part since the last restart; a part ends with 1."""
        start, end = self._part(step - 1)
        return min(1.0, max(0, step - start) / max(1, end - start))

    def _part(self, step: int) -> tuple[int, int]:
        """First and last step of the part of the run, between two restarts, that a step belongs to."""
        restarts = [epoch * self.steps_per_epoch for epoch in self.schedule.restarts]
        start = max((restart for restart in restarts if restart <= step), default=0)
        return start, min((restart for restart in restarts if restart > step), default=self.total_steps)

    def learning_rate(self, step: int) -> float:
        """Linear warm-up to the curve's value, then cosine to `final`, or step decay; after a restart once more."""
        start, end = self._part(step)
        step, total = step - start, end - start
        warmup = self.schedule.warmup_epochs * self.steps_per_epoch
        if start:
            warmup = min(warmup, total / 10)
        if step < warmup:
            return linear_warmup(step, warmup, self.lr * self.schedule.warmup_from, self._curve(warmup, total))
        return self._curve(step, total)

    def _curve(self, step: float, total: int) -> float:
        progress = step / max(1, total)
        if self.schedule.milestones:
            return self.lr * step_decay(progress, self.schedule.milestones, self.schedule.factor)
        return self.lr * cosine(progress, 1.0, self.schedule.final)

    def side(self, step: int) -> int:
        """Side of the large views at a step: the image size, or a multiple of 4 that grows up to it."""
        schedule, size = self.schedule, self.image_size
        start, end = self._part(step)
        progress = step / max(1, end)
        if start or progress >= schedule.grow_until or schedule.grow_from == 1:
            return size
        grown = progress / schedule.grow_until if schedule.grow == "steadily" else 0.0
        share = schedule.grow_from + (1 - schedule.grow_from) * grown
        return max(min(SMALLEST_SIDE, size), min(size, 4 * round(share * size / 4)))
