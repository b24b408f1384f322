"""The training loop: views → loss → gradient → update → momentum; then an evaluation, a line, a checkpoint.

effssl pretrain --data cifar10 --objective byol+rotation --out runs/first
effssl pretrain --data cifar10 --objective byol+rotation --out runs/first --resume auto
torchrun --nproc-per-node 2 -m effssl pretrain --data cifar10 --objective byol+rotation --out runs/first
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from effssl.network.loaded import dump_encoder
from effssl.run import RunFolder
from effssl.runtime.distribution import barrier, rank, world_size
from effssl.runtime.files import write_atomically
from effssl.runtime.progress import say
from effssl.runtime.signals import Stop
from effssl.training.budget import Budget
from effssl.training.health import Monitor
from effssl.training.journal import Journal, format_duration, step_text
from effssl.training.metadata import encoder_metadata
from effssl.training.saving import Checkpoints, check_finite
from effssl.training.trainer import Trainer

CHECK_EVERY = 20  # steps between two reads of the loss; each of them waits for the device


def train(trainer: Trainer, run: RunFolder, journal: Journal, stop: Stop, budget: Budget | None = None) -> None:
    """Train until the last step, from the newest checkpoint if there is one, and write the encoder.

    In a run of many processes all of them come here; the first one writes the files.
    """
    monitor = Monitor(trainer)
    checkpoints = Checkpoints(run, trainer, stop, budget)
    begin(trainer, run, journal, monitor, checkpoints.restore())
    if budget is not None:
        monitor.every = budget.begin(trainer, monitor.every)
    stop.training = True
    with journal.bar(trainer.clock.total_steps, trainer.steps_done) as update:
        progress = Progress(trainer, journal, update, estimate=budget is None)
        while not trainer.finished:
            with trainer.timed():
                train_epoch(trainer, checkpoints, progress, budget)
            line = trainer.end_epoch()
            if trainer.finished or trainer.position.epoch % monitor.every == 0:
                line |= monitor.evaluate(line)
            journal.write(line, trainer.clock.epochs)
            checkpoints.after_epoch()
    with trainer.averaged():
        encoder = monitor.finished(trainer.objective.network.encoder)
        if rank() == 0:
            write_atomically(run.encoder_path, dump_encoder(encoder, encoder_metadata(trainer.config)))
    barrier()
    if trainer.config.start_from:
        say_gain(trainer, journal)


def say_gain(trainer: Trainer, journal: Journal) -> None:
    """Did it help? kNN accuracy of the starting weights, and of those now."""
    before, after = (trainer.position.evaluations[i]["knn"] for i in (0, -1))
    if before is not None and after is not None:
        journal.say(
            f"kNN {before:.1f} % with the starting weights → {after:.1f} % now ({after - before:+.1f}), validation"
        )


def train_epoch(trainer: Trainer, checkpoints: Checkpoints, progress: Progress, budget: Budget | None) -> None:
    """One pass over the images, or what is left of it."""
    at, steps = trainer.position, trainer.clock.steps_per_epoch
    progress.start()
    for views in trainer.loader.epoch(at.epoch, at.step):
        trainer.train_step(views)
        if budget is not None and budget.due(trainer):
            budget.replan(trainer)
        last = at.step == steps or trainer.finished
        if last or at.step % CHECK_EVERY == 0:
            check_finite(trainer)
            progress.show()
        if last:
            break
        checkpoints.after_step()


def begin(trainer: Trainer, run: RunFolder, journal: Journal, monitor: Monitor, state: dict[str, Any] | None) -> None:
    """Evaluate the network before its first step, or say where a run is resumed."""
    if rank() == 0:
        run.keep_metrics_until(trainer.position.epoch if state is not None else -1)
    if state is None:
        journal.write({"epoch": 0, "images": 0, "seconds": 0.0, "flops": 0} | monitor.evaluate() | monitor.baselines())
        return
    at, before = trainer.position, state["processes"]
    text = f"resuming after epoch {at.epoch} of {trainer.clock.epochs}"
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

    def __init__(self, trainer: Trainer, journal: Journal, update: Callable[[int, str], None], estimate: bool) -> None:
        self.trainer = trainer
        self.journal = journal
        self.update = update
        self.estimate = estimate
        self.start()

    def start(self) -> None:
        """Measure the speed from here on."""
        self.first = self.trainer.position.step
        self.started = time.perf_counter()

    def show(self) -> None:
        """Update the bar."""
        trainer, at = self.trainer, self.trainer.position
        rate = trainer.config.batch_size * (at.step - self.first) / (time.perf_counter() - self.started)
        text = step_text(at.epoch + 1, trainer.clock.epochs, trainer.means.mean("loss"), trainer.lr, rate)
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
