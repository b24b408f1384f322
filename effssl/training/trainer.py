"""A run in memory: one step of training, and everything that a checkpoint holds."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from effssl.data import Data
from effssl.data.joined import images_per_epoch
from effssl.data.views import Views
from effssl.objectives.objective import Objective
from effssl.recipes.resolve import Plan
from effssl.runtime.distribution import convert_sync_batchnorm, mean_over_processes, world_size
from effssl.runtime.errors import RequestError
from effssl.runtime.reading import one_line
from effssl.training.averaging import WeightAverage
from effssl.training.build import build_loader, build_objective, in_parallel
from effssl.training.clock import Clock
from effssl.training.optimizers import build_optimizer, set_learning_rate
from effssl.training.snr import GradientNoise


@dataclass
class Means:
    """Running means of the figures of an epoch; the device is synchronized only when they are read."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, figures: dict[str, Tensor]) -> None:
        """Take in the figures of one step, in double precision, where the order of sums does not matter."""
        for name, value in figures.items():
            value = value.to(torch.float32 if value.device.type == "mps" else torch.float64)
            self.sums[name] = self.sums[name] + value if name in self.sums else value
            self.counts[name] = self.counts.get(name, 0) + 1

    def mean(self, name: str) -> float:
        """One of them, on this process."""
        return float(self.sums[name]) / self.counts[name]

    def over_processes(self) -> Means:
        """The same for all processes together."""
        return Means(mean_over_processes(self.sums), self.counts)

    def not_finite(self) -> list[str]:
        """Names of figures that are not finite; empty if the loss is."""
        if "loss" not in self.sums or bool(torch.isfinite(self.sums["loss"])):
            return []
        return [name for name, value in self.sums.items() if not bool(torch.isfinite(value))]


@dataclass
class Position:
    """How far a run is: what a checkpoint holds besides weights and optimizer."""

    epoch: int = 0
    step: int = 0  # batches of this epoch that are done
    updates: int = 0  # optimizer steps that the GradScaler did not skip
    seconds: float = 0.0  # spent in training steps, evaluations excluded
    elapsed: float = 0.0  # spent in all, by this and earlier attempts
    evaluation_seconds: float = 0.0  # of one evaluation of the representation
    flops: int = 0  # of all steps so far
    step_flops: dict[str, int] = field(default_factory=dict)  # counted once, by the sides of the views
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    baselines: dict[str, float] = field(default_factory=dict)  # what costs nothing, by the same measure

    def check(self, clock: Clock) -> None:
        """Refuse, with a ValueError, values that no run reaches by this clock."""
        limits = {"epoch": clock.epochs, "step": clock.steps_per_epoch, "updates": math.inf, "flops": math.inf}
        for name, limit in limits.items():
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= limit:
                most = f", of {limit}" if limit < math.inf else ""
                raise ValueError(f"its {name} is {one_line(value)}{most}")
        for name in ("seconds", "elapsed", "evaluation_seconds"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value < math.inf:
                raise ValueError(f"its {name} is {one_line(value)}")


def check_counts(state: dict[str, Any], trainable: bool) -> None:
    """Refuse, with a ValueError, numbers of steps, processes and threads that no run has."""
    least = {"total_steps": int(trainable), "processes": 1}
    least |= {"threads": 1} if state.get("threads") is not None else {}  # earlier versions did not store it
    for name, low in least.items():
        value = state[name]
        if type(value) is not int or value < low:
            raise ValueError(f"its {name} is {one_line(value)}")


def trainable(objective: Objective) -> bool:
    """Whether the encoder has weights to train."""
    return any(p.requires_grad for p in objective.network.encoder.parameters())


class Trainer:
    """What moves in a run (objective, optimizer, scaler, clock, position) and what does not (data, configuration)."""

    def __init__(self, plan: Plan, data: Data, device: torch.device) -> None:
        config = self.config = plan.config
        if config.batch_size % (world_size() * config.accumulate):
            raise RequestError(
                f"a batch of {config.batch_size} images cannot be split into {config.accumulate} micro-batches on each "
                f"of {world_size()} processes"
            )
        self.data = data
        self.device = device
        self.fingerprint = data.train.fingerprint()
        self.objective = build_objective(plan, device, data)
        self.parallel: nn.Module = self.objective
        if world_size() > 1:
            convert_sync_batchnorm(self.objective, device.type == "cuda")
            self.parallel = in_parallel(self.objective)
        self.optimizer = build_optimizer(config.optimizer, self.objective, config.lr)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
        self.clock = Clock.of(config, images_per_epoch(data.train))
        if not trainable(self.objective):  # an encoder that is computed, not trained
            self.clock.set_total_steps(0)
        self.loader = build_loader(self.objective, data.train, device, self.clock)
        self.position = Position()
        self.means = Means()
        self._since: float | None = None  # when the timed block began
        self.noise = GradientNoise(self.objective.network, config.health.snr_beta) if config.health.snr else None
        self.average = WeightAverage(self.objective, config.ema) if config.ema else None

    @property
    def steps_done(self) -> int:
        """Steps taken so far, over all epochs."""
        return self.position.epoch * self.clock.steps_per_epoch + self.position.step

    @property
    def finished(self) -> bool:
        """Whether the last step was taken."""
        return self.steps_done >= self.clock.total_steps

    @property
    def lr(self) -> float:
        """The learning rate of the last step."""
        return self.optimizer.param_groups[0]["lr"]

    def averaged(self) -> AbstractContextManager[None]:
        """A block in which the objective has the weights that are evaluated: averaged ones, if the run has them."""
        return nullcontext() if self.average is None else self.average.applied()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the seconds of a block as time of training, its views included."""
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self.position.seconds = self.seconds
            self._since = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside such a block, leave these seconds out."""
        self.position.seconds = self.seconds
        self._since = None
        try:
            yield
        finally:
            self._since = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Time of training so far."""
        running = time.perf_counter() - self._since if self._since is not None else 0.0
        return self.position.seconds + running

    def train_step(self, views: Views) -> None:
        """One step, its cost counted and its figures added to the means of the epoch."""
        loss, metrics = self._counted_step(views)
        self.means.add({"loss": loss, **metrics})
        self.position.step += 1

    def step(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        """One batch: loss, gradient, update. The results stay tensors, so that the device is not synchronized."""
        set_learning_rate(self.optimizer, self.clock.learning_rate(self.position.updates))
        self.optimizer.zero_grad(set_to_none=True)
        loss, metrics = self._gradient(views)
        self.scaler.unscale_(self.optimizer)
        if self.noise is not None and (not self.scaler.is_enabled() or self.finite(gradients=True)):
            metrics |= self.noise.observe()
        if self._update():
            self.position.updates += 1
            self.objective.after_update(self.clock.progress(self.position.updates))
            if self.average is not None:
                self.average.update(self.position.updates)
        return loss, metrics

    def _gradient(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and gradient of a batch, one micro-batch after another; figures are means over them."""
        parts = views.micro_batches(self.config.accumulate)
        sums: dict[str, Tensor] = {}
        for i, part in enumerate(parts, start=1):
            # Processes exchange gradients once, with the last micro-batch.
            waits = isinstance(self.parallel, DistributedDataParallel) and i < len(parts)
            with self.parallel.no_sync() if waits else nullcontext():  # type: ignore[operator]
                loss, metrics = self.parallel(part)
                self.scaler.scale(loss / len(parts)).backward()
            for name, value in {"": loss.detach(), **metrics}.items():
                sums[name] = sums[name] + value if name in sums else value
        means = {name: value / len(parts) if len(parts) > 1 else value for name, value in sums.items()}
        return means.pop(""), means

    def _update(self) -> bool:
        """Take the optimizer step; False if the fp16 scaler skipped it, in which case nothing else may move either."""
        self.objective.before_update(self.position.updates)
        if self.config.optimizer.clip_norm:
            torch.nn.utils.clip_grad_norm_(self.objective.parameters(), self.config.optimizer.clip_norm)
        self.scaler.step(self.optimizer)
        if not self.scaler.is_enabled():
            return True
        before = self.scaler.get_scale()
        self.scaler.update()
        return self.scaler.get_scale() >= before

    def _counted_step(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        """A step whose cost is counted, not estimated: forward and backward of every pass of every term.

        Steps with views of the same sides cost the same, so the first of each kind is enough.
        """
        kind = str(sorted({name: x.shape[-1] for name, x in views.pixels.items()}.items()))
        costs = self.position.step_flops
        if kind in costs:
            result = self.step(views)
        else:
            with FlopCounterMode(display=False) as counter:
                result = self.step(views)
            costs[kind] = counter.get_total_flops() * world_size()
        self.position.flops += costs[kind]
        return result

    def end_epoch(self) -> dict[str, Any]:
        """Close an epoch; its line for the journal."""
        self.position.epoch += 1
        steps = min(self.position.epoch * self.clock.steps_per_epoch, self.clock.total_steps)
        line: dict[str, Any] = {"epoch": self.position.epoch, "step": steps, "images": steps * self.config.batch_size}
        line |= {"lr": self.lr, "seconds": round(self.position.seconds, 3), "flops": self.position.flops}
        means = self.means.over_processes()
        line |= {name: round(means.mean(name), 6) for name in means.sums}
        self.position.step = 0
        self.means = Means()
        return line

    def record_evaluation(self, found: dict[str, Any], seconds: float) -> list[dict[str, Any]]:
        """Keep an evaluation of the representation and how long it took; returns all of them."""
        self.position.evaluation_seconds = seconds
        self.position.evaluations.append(found)
        return self.position.evaluations

    def record_baselines(self, scores: dict[str, float]) -> None:
        """Keep the scores of what costs nothing."""
        self.position.baselines = scores

    def finite(self, gradients: bool = False) -> bool:
        """Whether all weights are finite, or all gradients: fp16 ones may not be, and such a step is skipped."""
        tensors = [p.grad if gradients else p for p in self.objective.parameters()]
        norms = torch._foreach_norm([x for x in tensors if x is not None])
        return bool(torch.isfinite(torch.stack(norms)).all())

    def state(self, elapsed: float = 0.0) -> dict[str, Any]:
        """Everything that a resumed run needs, after `elapsed` seconds of its budget.

        There is no random state, since every draw is named by its step.
        """
        self.means = self.means.over_processes()  # one checkpoint is for all processes
        self.position.elapsed = elapsed
        return {
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "position": vars(self.position),
            "means": vars(self.means),
            "total_steps": self.clock.total_steps,
            "data": self.fingerprint,
            "noise": self.noise.state() if self.noise is not None else None,
            "average": self.average.average if self.average is not None else None,
            "processes": world_size(),
            "threads": torch.get_num_threads(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Return to a saved state."""
        if state["data"] != self.fingerprint:
            raise RequestError("the images have changed since the run was started; choose another --out")
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        position = Position(**state["position"])
        sums = {name: value.to(self.device) for name, value in state["means"]["sums"].items()}
        self.means = Means(sums, state["means"]["counts"])
        if not self.config.schedule.restarts:  # a run that is trained longer has more steps than its checkpoint knew
            self.clock.set_total_steps(state["total_steps"])
        if self.noise is not None:
            self.noise.restore(state["noise"])
        if self.average is not None:
            self.average.restore(state["average"])
        check_counts(state, trainable(self.objective))
        position.check(self.clock)
        self.position = position
        if not self.all_finite():
            raise ValueError("its weights are not finite")

    def all_finite(self) -> bool:
        """Whether what is evaluated is finite: weights and their averages, and the statistics of batch norm."""
        tensors = [*self.objective.state_dict().values(), *(self.average.average.values() if self.average else ())]
        return all(bool(torch.isfinite(x).all()) for x in tensors if isinstance(x, Tensor) and x.is_floating_point())
