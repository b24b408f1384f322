"""The training loop, top to bottom: views → loss → gradient → update → momentum, then a look, a line, a checkpoint.

effssl pretrain --data cifar10 --objective byol+rotation --out runs/first
effssl pretrain --data cifar10 --objective byol+rotation --out runs/first --resume auto
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from effssl.data import Data
from effssl.data.loader import ViewLoader
from effssl.data.views import Views
from effssl.errors import RequestError, RunFailed
from effssl.network import build_network
from effssl.network.loaded import describe, dump_encoder
from effssl.objectives.objective import Objective, Setting, build_objective
from effssl.recipes import Plan
from effssl.run import Run, write_atomically
from effssl.training.checkpoint import load_checkpoint, save_checkpoint
from effssl.training.display import Display, clock, progress_text
from effssl.training.health import Look, Monitor, record, verdict
from effssl.training.optimizers import learning_rate, make_optimizer, set_learning_rate
from effssl.training.snr import GradientNoise

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
CHECK_EVERY = 20  # steps between two looks at the loss; each look waits for the device


@dataclass
class Position:
    """How far a run is: all that a checkpoint holds besides weights and optimizer."""

    epoch: int = 0
    updates: int = 0  # optimizer steps really taken
    seconds: float = 0.0  # spent in training steps, looks excluded
    flops: int = 0  # of one step, counted
    looks: list[dict[str, Any]] = field(default_factory=list)


class Trainer:
    """A run in memory: what moves (objective, optimizer, scaler, position) and what does not (data, plan)."""

    def __init__(self, plan: Plan, data: Data, device: torch.device) -> None:
        config = self.config = plan.config
        self.data, self.fingerprint = data, data.train.fingerprint()
        self.objective = make_objective(plan, device, data)
        self.optimizer = make_optimizer(config.optimizer, self.objective, config.lr)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
        self.loader = ViewLoader(
            data.train, config.augment, self.objective.needs, config.batch_size, config.image_size, config.seed, device,
            config.workers,
        )  # fmt: skip
        self.total_steps = config.epochs * self.loader.steps
        self.position = Position()
        self.noise = GradientNoise(self.objective.network, config.health.snr_beta) if config.health.snr else None

    def step(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        """One batch: loss, gradient, update. What comes back are tensors, so that nobody waits for the device."""
        lr = learning_rate(
            self.config.lr, self.config.schedule, self.position.updates, self.loader.steps, self.total_steps
        )
        set_learning_rate(self.optimizer, lr)
        loss, metrics = self.objective(views)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        if self.noise is not None and (not self.scaler.is_enabled() or self._finite()):
            metrics |= self.noise.observe()
        if self._update():
            self.position.updates += 1
            self.objective.after_update(self.position.updates / self.total_steps)
        return loss.detach(), metrics

    def _finite(self) -> bool:
        """Whether all gradients are finite; fp16 ones may not be, and such a step is skipped."""
        grads = [p.grad for p in self.objective.parameters() if p.grad is not None]
        return bool(torch.isfinite(torch.stack(torch._foreach_norm(grads))).all())

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
        """The first step of a run is counted, not estimated: forward and backward of every pass of every term."""
        with FlopCounterMode(display=False) as counter:
            result = self.step(views)
        self.position.flops = counter.get_total_flops()
        return result

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs; no random state, since every draw is named by its step."""
        return {
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "position": asdict(self.position),
            "data": self.fingerprint,
            "noise": self.noise.state() if self.noise is not None else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a saved state."""
        if state["data"] != self.fingerprint:
            raise RequestError("the images have changed since the run was started; choose another --out")
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.position = Position(**state["position"])
        if self.noise is not None:
            self.noise.restore(state["noise"])


def train(trainer: Trainer, run: Run, display: Display) -> None:
    """Train until the last epoch, from the newest checkpoint if there is one, and write the encoder."""
    config, loader, network = trainer.config, trainer.loader, trainer.objective.network
    monitor = Monitor(config.health, trainer.data, describe(config))
    health_every = config.health.every or max(1, config.epochs // 10)

    state = load_checkpoint(run.checkpoint_path)
    if state is None:
        run.keep_metrics_until(-1)  # lines of an attempt that was stopped before its first checkpoint
        look = monitor.look(network)
        trainer.position.looks.append(asdict(look))
        run.log({"epoch": 0, "images": 0, "seconds": 0.0, "flops": 0} | record(look))
    else:
        trainer.restore(state)
        run.keep_metrics_until(trainer.position.epoch)
        display.say(f"resuming after epoch {trainer.position.epoch} of {config.epochs}")
    at = trainer.position
    told = False  # how long it will take

    with display.bar(trainer.total_steps, at.epoch * loader.steps) as progress:
        while at.epoch < config.epochs:
            started = time.perf_counter()
            sums: dict[str, Tensor] = {}
            for i, views in enumerate(loader.epoch(at.epoch), start=1):
                loss, metrics = trainer.step(views) if at.flops else trainer.counted_step(views)
                for name, value in {"loss": loss, **metrics}.items():
                    sums[name] = sums[name] + value if name in sums else value
                if i % CHECK_EVERY == 0 or i == loader.steps:
                    stop_if_not_finite(sums, at.epoch + 1, i, config.lr)
                    rate = config.batch_size * i / (time.perf_counter() - started)
                    lr = trainer.optimizer.param_groups[0]["lr"]
                    text = progress_text(at.epoch + 1, config.epochs, float(sums["loss"]) / i, lr, rate)
                    progress(at.epoch * loader.steps + i, text)
                    if not told:
                        left = (trainer.total_steps - at.epoch * loader.steps) * config.batch_size / rate
                        display.say(f"about {clock(left)} to go, looks not counted")
                        told = True
            at.epoch += 1
            at.seconds += time.perf_counter() - started

            steps = at.epoch * loader.steps
            line: dict[str, Any] = {"epoch": at.epoch, "step": steps, "images": steps * config.batch_size}
            line |= {"lr": lr, "seconds": round(at.seconds, 3), "flops": at.flops * steps}
            line |= {name: round(float(value) / loader.steps, 6) for name, value in sums.items()}
            if at.epoch % health_every == 0 or at.epoch == config.epochs:
                look = monitor.look(network)
                at.looks.append(asdict(look))
                chance = 1 / len(config.rotation.angles)
                word, why = verdict([Look(**one) for one in at.looks], line.get("rotation_accuracy"), chance)
                line |= record(look) | {"verdict": word, "why": why}
            run.log(line)
            display.epoch(line, config.epochs)
            if at.epoch % config.checkpoint_every == 0 or at.epoch == config.epochs:
                save_checkpoint(run.checkpoint_path, trainer.state())
    write_atomically(run.encoder_path, dump_encoder(network.encoder, config))


def make_objective(plan: Plan, device: torch.device, data: Data | None = None) -> Objective:
    """Network and terms on the training device, in the memory layout convolutions like best."""
    config = plan.config
    setting = Setting(
        seed=config.seed,
        alone=not plan.instance,
        image_size=config.image_size,
        batch_size=config.batch_size,
        steps_per_epoch=len(data.train) // config.batch_size if data else 1,
        labels=data.train.labels if data else None,
        classes=len(data.train.classes) if data else 0,
    )
    network = build_network(config)
    objective = build_objective(config, plan.weights, network, setting)
    objective = objective.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if plan.config.precision != "float32":
        objective.autocast = partial(torch.autocast, device.type, PRECISIONS[plan.config.precision])
    return objective


def stop_if_not_finite(sums: dict[str, Tensor], epoch: int, step: int, lr: float) -> None:
    """A loss that is not a number stays so: say where it happened and what helps."""
    if bool(torch.isfinite(sums["loss"])):
        return
    bad = [name.removeprefix("loss/") for name, value in sums.items() if "/" in name and not torch.isfinite(value)]
    raise RunFailed(
        f"the loss is not finite (term {', '.join(bad) or 'sum'}, epoch {epoch}, step {step}); "
        f"try a smaller --lr than {lr:g}, a longer warm-up or --precision float32. The last checkpoint is intact"
    )
