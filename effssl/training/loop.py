"""The training loop, top to bottom: views → loss → gradient → update → momentum, then a look, a line, a checkpoint.

effssl pretrain --data cifar10 --objective byol+rotation --out runs/first
effssl pretrain --data cifar10 --objective byol+rotation --out runs/first --resume auto
torchrun --nproc-per-node 2 -m effssl pretrain --data cifar10 --objective byol+rotation --out runs/first
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from effssl.data import Data
from effssl.data.loader import ViewLoader
from effssl.data.views import Views
from effssl.network.loaded import describe, dump_encoder
from effssl.recipes import Plan
from effssl.run import Run
from effssl.runtime.distribution import anywhere, barrier, mean_over_processes, rank, share, synchronize_norms, world
from effssl.runtime.errors import RequestError, RunFailed, Stopped
from effssl.runtime.files import sweep, write_atomically
from effssl.runtime.signals import Stop
from effssl.training.budget import Budget
from effssl.training.build import in_parallel, make_objective, side_of_views
from effssl.training.checkpoint import load_checkpoint, save_checkpoint, set_aside_damaged
from effssl.training.display import Display, clock, progress_text
from effssl.training.events import Events
from effssl.training.health import Look, Monitor, record, verdict
from effssl.training.optimizers import learning_rate, make_optimizer, set_learning_rate
from effssl.training.snr import GradientNoise

CHECK_EVERY = 20  # steps between two looks at the loss; each look waits for the device


@dataclass
class Position:
    """How far a run is: all that a checkpoint holds besides weights and optimizer."""

    epoch: int = 0
    step: int = 0  # batches of this epoch that are done
    updates: int = 0  # optimizer steps really taken
    total: int = 0  # steps of the whole run; a run with a time budget changes its mind about them on the way
    seconds: float = 0.0  # spent in training steps, looks excluded
    elapsed: float = 0.0  # spent in all, by this and earlier attempts
    look: float = 0.0  # seconds of a look at the representation
    flops: int = 0  # of all steps so far
    costs: dict[str, int] = field(default_factory=dict)  # counted flops of one step, by terms and sizes
    looks: list[dict[str, Any]] = field(default_factory=list)
    sums: dict[str, Tensor] = field(default_factory=dict)  # figures of this epoch, added up
    counts: dict[str, int] = field(default_factory=dict)  # steps that had each of them: a term may sit out some


class Trainer:
    """A run in memory: what moves (objective, optimizer, scaler, position) and what does not (data, plan)."""

    def __init__(self, plan: Plan, data: Data, device: torch.device) -> None:
        config = self.config = plan.config
        if config.batch_size % (world() * config.accumulate):
            raise RequestError(
                f"a batch of {config.batch_size} images cannot be dealt out to {world()} processes in "
                f"{config.accumulate} parts each"
            )
        self.data, self.fingerprint = data, data.train.fingerprint()
        self.objective = make_objective(plan, device, data)
        self.parallel: nn.Module = self.objective
        if world() > 1:
            synchronize_norms(self.objective, device.type == "cuda")
            self.parallel = in_parallel(self.objective, plan)
        self.optimizer = make_optimizer(config.optimizer, self.objective, config.lr)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
        self.loader = ViewLoader(
            data.train, config.augment, self.objective.needs, config.batch_size, config.image_size, config.seed, device,
            config.workers, rows=share(config.batch_size), compiled=config.compile, done=self.done,
            grow=partial(side_of_views, config),
        )  # fmt: skip
        self.position = Position(total=config.epochs * self.loader.steps)
        self.noise = GradientNoise(self.objective.network, config.health.snr_beta) if config.health.snr else None

    @property
    def total_steps(self) -> int:
        """Steps of the whole run, as far as is known."""
        return self.position.total

    @property
    def steps_done(self) -> int:
        """Steps taken so far, over all epochs."""
        return self.position.epoch * self.loader.steps + self.position.step

    def done(self, step: int) -> float:
        """The share of the run before a step."""
        return min(1.0, step / self.total_steps)

    def step(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        """One batch: loss, gradient, update. What comes back are tensors, so that nobody waits for the device."""
        lr = learning_rate(
            self.config.lr, self.config.schedule, self.position.updates, self.loader.steps, self.total_steps
        )
        set_learning_rate(self.optimizer, lr)
        self.optimizer.zero_grad(set_to_none=True)
        loss, metrics = self._gradient(views)
        self.scaler.unscale_(self.optimizer)
        if self.noise is not None and (not self.scaler.is_enabled() or self.finite(gradients=True)):
            metrics |= self.noise.observe()
        if self._update():
            self.position.updates += 1
            self.objective.after_update(self.position.updates / self.total_steps)
        return loss, metrics

    def _gradient(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and gradient of a batch, if told in parts one after another; the mean over parts."""
        parts = views.parts(self.config.accumulate)
        sums: dict[str, Tensor] = {}
        for i, part in enumerate(parts, start=1):
            # Processes exchange gradients once, with the last part.
            waits = isinstance(self.parallel, DistributedDataParallel) and i < len(parts)
            with self.parallel.no_sync() if waits else nullcontext():  # type: ignore[operator]
                loss, metrics = self.parallel(part)
                self.scaler.scale(loss / len(parts)).backward()
            for name, value in {"": loss.detach(), **metrics}.items():
                sums[name] = sums[name] + value if name in sums else value
        means = {name: value / len(parts) if len(parts) > 1 else value for name, value in sums.items()}
        return means.pop(""), means

    def finite(self, gradients: bool = False) -> bool:
        """Whether all weights are finite, or all gradients: fp16 ones may not be, and such a step is skipped."""
        some = [p.grad if gradients else p for p in self.objective.parameters()]
        return bool(torch.isfinite(torch.stack(torch._foreach_norm([x for x in some if x is not None]))).all())

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

    def counted_step(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        """A step whose cost is counted, not estimated: forward and backward of every pass of every term.

        Steps with the same terms and sizes cost the same, so the first of each kind is enough.
        """
        sides = sorted({x.shape[-1] for x in views.large})
        kind, costs = f"{self.objective.present(views)} {sides}", self.position.costs
        if kind in costs:
            result = self.step(views)
        else:
            with FlopCounterMode(display=False) as counter:
                result = self.step(views)
            costs[kind] = counter.get_total_flops() * world()
        self.position.flops += costs[kind]
        return result

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs; no random state, since every draw is named by its step."""
        return {
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "position": {item.name: getattr(self.position, item.name) for item in fields(Position)},
            "data": self.fingerprint,
            "noise": self.noise.state() if self.noise is not None else None,
            "processes": world(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a saved state."""
        if state["data"] != self.fingerprint:
            raise RequestError("the images have changed since the run was started; choose another --out")
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.position = Position(**({"total": self.total_steps} | state["position"]))
        device = next(self.objective.parameters()).device
        self.position.sums = {name: value.to(device) for name, value in self.position.sums.items()}
        if self.noise is not None:
            self.noise.restore(state["noise"])


def train(
    trainer: Trainer,
    run: Run,
    display: Display,
    stop: Stop,
    budget: Budget | None = None,
    events: Events | None = None,
) -> None:
    """Train until the last step, from the newest checkpoint if there is one, and write the encoder.

    In a run of many processes all of them come here; the first one writes the files.
    """
    config, loader, network = trainer.config, trainer.loader, trainer.objective.network
    monitor = Monitor(config.health, trainer.data, describe(config))
    health_every = config.health.every or max(1, config.epochs // 10)
    writes = rank() == 0

    state = load_checkpoint(run.checkpoint_path)
    barrier()  # nobody writes before all have read
    if writes:
        set_aside_damaged(run.checkpoint_path)
        sweep(run.folder)
    if state is None:
        began = time.perf_counter()
        look = monitor.look(network)
        trainer.position.look = time.perf_counter() - began
        trainer.position.looks.append(asdict(look))
        if writes:
            run.keep_metrics_until(-1)  # lines of an attempt that was stopped before its first checkpoint
            first_line = {"epoch": 0, "images": 0, "seconds": 0.0, "flops": 0} | record(look)
            run.log(first_line)
            if events is not None:
                events.write(first_line)
    else:
        trainer.restore(state)
        if writes:
            run.keep_metrics_until(trainer.position.epoch)
        display.say(resuming(state, trainer))
    at = trainer.position
    if budget is not None:
        health_every = budget.begin(trainer, health_every)
    # In double precision it does not matter how often the sums of several processes were put together on the way.
    device = next(network.parameters()).device
    exact = torch.float32 if device.type == "mps" else torch.float64
    told = False  # how long it will take

    def save() -> None:
        # A step that was not finite spoils the weights: such a state must not take the place of a good one.
        stop_if_not_finite(at.sums, at.epoch + 1, at.step, config.lr)
        if not trainer.finite():
            raise RunFailed("the weights are not finite; try a smaller --lr. The last checkpoint is intact")
        at.sums = mean_over_processes(at.sums)  # one checkpoint speaks for all processes
        if budget is not None:
            at.elapsed = budget.elapsed()
        if writes:
            save_checkpoint(run.checkpoint_path, trainer.state())

    stop.training = True
    with display.bar(trainer.total_steps, trainer.steps_done) as progress:

        def stop_if_asked(saved: bool = False) -> None:
            if anywhere(bool(stop.requested)):
                if not saved:
                    save()
                done = f"epoch {at.epoch + 1}, step {at.step}" if at.step else f"epoch {at.epoch}"
                raise Stopped(f"stopped and saved after {done}; go on with --resume auto")

        while trainer.steps_done < trainer.total_steps:
            started, first = time.perf_counter(), at.step
            for views in loader.epoch(at.epoch, first):
                loss, metrics = trainer.counted_step(views)
                at.step += 1
                for name, value in {"loss": loss, **metrics}.items():
                    value = value.to(exact)
                    at.sums[name] = at.sums[name] + value if name in at.sums else value
                    at.counts[name] = at.counts.get(name, 0) + 1
                if budget is not None and budget.due(trainer):
                    budget.plan_again(trainer, at.seconds + time.perf_counter() - started)
                last = at.step == loader.steps or trainer.steps_done >= trainer.total_steps
                epochs = -(-trainer.total_steps // loader.steps)
                if at.step % CHECK_EVERY == 0 or last:
                    stop_if_not_finite(at.sums, at.epoch + 1, at.step, config.lr)
                    rate = config.batch_size * (at.step - first) / (time.perf_counter() - started)
                    lr = trainer.optimizer.param_groups[0]["lr"]
                    text = progress_text(at.epoch + 1, epochs, float(at.sums["loss"]) / at.step, lr, rate)
                    progress(trainer.steps_done, text)
                    if not told and budget is None:
                        left = (trainer.total_steps - trainer.steps_done) * later_steps(trainer)
                        display.say(f"about {clock(left * config.batch_size / rate)} to go, looks not counted")
                        told = True
                if trainer.steps_done >= trainer.total_steps:
                    break
                if not last:
                    due = config.checkpoint_every and at.updates % config.checkpoint_every == 0
                    if due or anywhere(bool(stop.requested)):
                        at.seconds += time.perf_counter() - started
                        started, first = time.perf_counter(), at.step
                        save()
                        stop_if_asked(saved=True)
            at.seconds += time.perf_counter() - started
            at.epoch += 1

            steps, finished = min(at.epoch * loader.steps, trainer.total_steps), at.epoch >= epochs
            line: dict[str, Any] = {"epoch": at.epoch, "step": steps, "images": steps * config.batch_size}
            line |= {"lr": lr, "seconds": round(at.seconds, 3), "flops": at.flops}
            sums = mean_over_processes(at.sums)
            line |= {name: round(float(value) / at.counts[name], 6) for name, value in sums.items()}
            at.step, at.sums, at.counts = 0, {}, {}
            if at.epoch % health_every == 0 or finished:
                look = monitor.look(network)
                at.looks.append(asdict(look))
                word, why = verdict(
                    [Look(**one) for one in at.looks], line.get("rotation_accuracy"), config.rotation.chance
                )
                line |= record(look) | {"verdict": word, "why": why}
            if writes:
                run.log(line)
                if events is not None:
                    events.write(line)
            display.epoch(line, epochs)
            due = not config.checkpoint_every or at.updates % config.checkpoint_every == 0
            if due or finished:
                save()
            if not finished:
                stop_if_asked(saved=bool(due))
    if events is not None:
        events.close()
    if writes:
        write_atomically(run.encoder_path, dump_encoder(network.encoder, describe(config)))
    barrier()


def later_steps(trainer: Trainer) -> float:
    """How much longer than now the steps to come take on average, by the area of views that grow."""
    done = trainer.done(trainer.steps_done)
    sides = [side_of_views(trainer.config, done + (1 - done) * i / 20) for i in range(20)]
    return sum(side**2 for side in sides) / len(sides) / sides[0] ** 2


def resuming(state: dict[str, Any], trainer: Trainer) -> str:
    """Where a run goes on, and what is different now."""
    at, before = trainer.position, state.get("processes", 1)
    text = f"resuming after epoch {at.epoch} of {trainer.config.epochs}"
    if at.step:
        text += f" and {at.step} of {trainer.loader.steps} steps"
    if before != world():
        text += f"; {before} processes became {world()}, with the same batches and views"
    return text


def stop_if_not_finite(sums: dict[str, Tensor], epoch: int, step: int, lr: float) -> None:
    """A loss that is not a number stays so: say where it happened and what helps."""
    if not sums or bool(torch.isfinite(sums["loss"])):
        return
    bad = [name.removeprefix("loss/") for name, value in sums.items() if "/" in name and not torch.isfinite(value)]
    raise RunFailed(
        f"the loss is not finite (term {', '.join(bad) or 'sum'}, epoch {epoch}, step {step}); "
        f"try a smaller --lr than {lr:g}, a longer warm-up or --precision float32. The last checkpoint is intact"
    )
