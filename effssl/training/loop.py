"""The training loop: epochs of steps, and after each an evaluation if one is due, a line of the journal, a checkpoint.

One step (loss, gradient, update, momentum copies) is `Trainer.step`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from effssl.network.loaded import dump_encoder
from effssl.recipes.budgets import parse_budget
from effssl.run import RunFolder
from effssl.runtime.distribution import barrier, rank, world_size
from effssl.runtime.files import write_atomically
from effssl.runtime.progress import say
from effssl.runtime.signals import Stop
from effssl.training.budget import Budget
from effssl.training.health import Monitor
from effssl.training.journal import Journal, Place, format_duration, step_text
from effssl.training.metadata import encoder_metadata
from effssl.training.saving import Checkpoints
from effssl.training.trainer import Trainer
from effssl.training.verdict import Representation

CHECK_EVERY = 20  # steps between two reads of the loss; each of them waits for the device


def train(trainer: Trainer, run: RunFolder, journal: Journal, stop: Stop, budget: Budget | None = None) -> None:
    """Train until the last step, from the newest checkpoint if there is one, and write the encoder.

    With several processes each of them calls it; the first one writes the files.
    """
    monitor = Monitor(trainer)
    checkpoints = Checkpoints(run, trainer, stop, budget)
    state = checkpoints.restore()
    if rank() == 0:
        run.keep_metrics_until(trainer.position.epoch if state is not None else -1)
    if state is None:
        journal.write(first_evaluation(trainer, monitor))
        if trainer.config.start_from:
            say_start(trainer, journal)
    else:
        say_resumed(trainer, journal, state)
    every = monitor.every if budget is None else budget.begin(trainer, monitor.every)
    stop.begin_training()
    with journal.bar(trainer.clock.total_steps, trainer.steps_done) as update:
        progress = Progress(trainer, journal, update, budget)
        while not trainer.finished:
            with trainer.timed():
                train_epoch(trainer, checkpoints, progress, budget)
            line = trainer.end_epoch()
            if trainer.finished or trainer.position.epoch % every == 0:
                line |= monitor.evaluate(line)
            journal.write(line, place_of(trainer, budget))
            checkpoints.after_epoch()
    with trainer.averaged():
        encoder = monitor.finished(trainer.objective.network.encoder)
        if rank() == 0:
            write_atomically(run.encoder_path, dump_encoder(encoder, encoder_metadata(trainer.config)))
    barrier()
    if trainer.config.start_from:
        say_gain(trainer, journal)


def place_of(trainer: Trainer, budget: Budget | None, running: bool = False) -> Place:
    """Where the run is after an epoch, or in one that is `running`."""
    at, epochs = trainer.position, trainer.clock.epochs
    if budget is None:
        left = trainer.seconds / at.epoch * (epochs - at.epoch) if at.epoch else 0.0
        return Place(at.epoch + running, epochs, left)
    gone = budget.elapsed()
    left = max(0.0, budget.seconds - gone) if not trainer.finished else 0.0
    return Place(at.epoch + running, epochs, left, trainer.config.budget, gone / parse_budget(trainer.config.budget))


def say_start(trainer: Trainer, journal: Journal) -> None:
    """How good the starting weights are, before anything is trained."""
    first = Representation(**trainer.position.evaluations[0])
    if first.score is not None:
        journal.say(f"{first.measure} {first.score:.1f} % with the starting weights")


def say_gain(trainer: Trainer, journal: Journal) -> None:
    """Did it help? The score of the starting weights, and of those now."""
    first, last = (Representation(**trainer.position.evaluations[i]) for i in (0, -1))
    if first.score is not None and last.score is not None:
        gain = f"{last.score:.1f} % now ({last.score - first.score:+.1f})"
        journal.say(f"{last.measure} {first.score:.1f} % with the starting weights → {gain}")


def train_epoch(trainer: Trainer, checkpoints: Checkpoints, progress: Progress, budget: Budget | None) -> None:
    """One pass over the images, or what is left of it."""
    at, steps = trainer.position, trainer.clock.steps_per_epoch
    progress.start()
    for views in trainer.loader.epoch(at.epoch, at.step):
        trainer.train_step(views)
        if budget is not None and budget.due(trainer):
            budget.replan(trainer)
        last = at.step == steps or trainer.finished  # a budget may end the run within an epoch
        if last or at.step % CHECK_EVERY == 0:
            checkpoints.check_finite()
            progress.show()
        if last:
            break
        checkpoints.after_step()


def first_evaluation(trainer: Trainer, monitor: Monitor) -> dict[str, Any]:
    """The journal's line of the network before its first step."""
    line = {"epoch": 0, "images": 0, "seconds": 0.0, "flops": 0} | monitor.evaluate()
    if trainer.config.budget or trainer.finished:  # else with the first evaluation after training
        line |= monitor.baselines()
    return line


def say_resumed(trainer: Trainer, journal: Journal, state: dict[str, Any]) -> None:
    """Say where a run is resumed, and what is not as it was."""
    at, before = trainer.position, state["processes"]
    total = "" if trainer.config.budget else f" of {trainer.clock.epochs}"
    text = f"resuming after epoch {at.epoch}{total}"
    if at.step:
        text += f" and {at.step} of {trainer.clock.steps_per_epoch} steps"
    if before != world_size():
        text += f"; {before} processes became {world_size()}, with the same batches and views"
    journal.say(text)
    threads, now = state.get("threads"), torch.get_num_threads()
    if threads not in (None, now) and rank() == 0:  # also if quiet: it changes the result
        say(f"threads: {threads} became {now}, so the result agrees with an uninterrupted run up to rounding only")


class Progress:
    """Shows speed and loss while an epoch runs, and once how long the run will take."""

    def __init__(
        self, trainer: Trainer, journal: Journal, update: Callable[[int, str], None], budget: Budget | None
    ) -> None:
        self.trainer = trainer
        self.journal = journal
        self.update = update
        self.budget = budget
        self.estimate = budget is None
        self.start()

    def start(self) -> None:
        """Measure the speed from here on."""
        self.first = self.trainer.position.step
        self.started = time.perf_counter()

    def show(self) -> None:
        """Update the bar."""
        trainer, at = self.trainer, self.trainer.position
        rate = trainer.config.batch_size * (at.step - self.first) / (time.perf_counter() - self.started)
        place = place_of(trainer, self.budget, running=True)
        text = step_text(place, trainer.means.mean("loss"), trainer.lr, rate)
        self.update(trainer.steps_done, text)
        if self.estimate:
            steps = (trainer.clock.total_steps - trainer.steps_done) * relative_cost(trainer)
            self.journal.say(
                f"about {format_duration(steps * trainer.config.batch_size / rate)} left, without evaluations"
            )
            self.estimate = False


def relative_cost(trainer: Trainer) -> float:
    """Mean cost of the steps to come as a multiple of the present one, by the area of views that grow."""
    clock, done = trainer.clock, trainer.steps_done
    sides = [clock.side(done + (clock.total_steps - done) * i // 20) for i in range(20)]
    return sum(side**2 for side in sides) / len(sides) / sides[0] ** 2
