"""The precision of a run that leaves it to the machine: steps are tried in float32 and in bfloat16.

effssl pretrain --data cifar10 --precision auto

bfloat16 is up to twice as fast on processors that compute in it, and many times slower on others, where it is emulated.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from effssl.config import Config
from effssl.data import Data
from effssl.data.views import Views
from effssl.recipes.resolve import Plan
from effssl.runtime.distribution import any_process, mean_over_ranks
from effssl.runtime.processor import bf16_kills, bf16_slowdown
from effssl.runtime.randomness import seeded
from effssl.training.trainer import Trainer, trainable

TIMED_STEPS = 3  # steps that are timed in each precision, after one that is not
# Between the two gradients of one batch. Measured at initial weights, small encoder, CIFAR-10, five objectives: 0.97 to
# 0.99; between float32 gradients of two batches, whose difference training averages out: 0.04 to 0.67.
MIN_COSINE = 0.9
MIN_SPEEDUP = 1.1  # of bf16 over float32; less is within the noise of a few steps and not worth the lost digits
HOPELESS = 1.5  # times as slow as float32: no further step of bf16 is tried
EMULATED = 3.0  # times as long for one convolution: not even one step of bf16 is tried, which may take a minute


def choose_precision(plan: Plan, data: Data, device: torch.device) -> Plan:
    """The plan with float32 or bf16 in place of auto, after trying both here; its last note says why.

    On a CPU `avoid_broken_amx` has to be called before.
    """
    if plan.config.precision != "auto":
        return plan
    obstacle = no_bf16(device)
    if any_process(bool(obstacle)):  # all decide alike
        return with_precision(plan, "float32", obstacle or "another process cannot compute in bf16")
    return with_precision(plan, *compare(plan, data, device))


def keep_precision(plan: Plan, before: Config) -> Plan:
    """The plan with the precision of an earlier attempt in place of auto: a resumed run does not measure anew."""
    if plan.config.precision != "auto":
        return plan
    return with_precision(plan, before.precision, "as when the run was started")


def with_precision(plan: Plan, precision: str, why: str) -> Plan:
    """The plan in this precision, and a note that says why."""
    config = dataclasses.replace(plan.config, precision=precision)  # type: ignore[arg-type]
    return dataclasses.replace(plan, config=config, notes=[*plan.notes, f"precision {precision}: {why}"])


def no_bf16(device: torch.device) -> str:
    """Why no step in bf16 need be tried on this device; empty if it is worth a try."""
    if device.type == "cuda":
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
        return "" if supported else "this GPU does not compute in bf16"
    if device.type != "cpu":
        return f"bf16 is not tried on {device.type}"
    if bf16_kills():
        return "AMX is broken here, and torch has begun to use it; a new process can try bf16"
    slowdown = bf16_slowdown()
    return f"bf16 is emulated here, a convolution takes {slowdown:.0f} times as long" if slowdown > EMULATED else ""


def compare(plan: Plan, data: Data, device: torch.device) -> tuple[str, str]:
    """The better precision and why, after some steps in both: on the same batch, from the same weights."""
    trainer = Trainer(trial_plan(plan, "float32"), data, device)
    if not trainable(trainer.objective):
        return "float32", "nothing is trained"
    views = next(iter(trainer.loader.epoch(0)))
    float32 = try_steps(trainer, views)
    trainer = Trainer(trial_plan(plan, "bf16"), data, device)
    bf16 = try_steps(trainer, views, limit=HOPELESS * float32.seconds)
    cosine = mean_over_ranks(gradient_cosine(float32.gradient, bf16.gradient))
    # A GPU is too fast to be timed by a few steps, and bf16 also saves its memory.
    speedup = 0.0 if device.type == "cuda" else MIN_SPEEDUP
    return decide(cosine, float32.seconds, bf16.seconds, speedup)


def trial_plan(plan: Plan, precision: str) -> Plan:
    """The plan of some steps in a precision, with views of full size: most of a run's time is spent on them."""
    schedule = dataclasses.replace(plan.config.schedule, grow_from=1.0)
    config = dataclasses.replace(plan.config, precision=precision, schedule=schedule)  # type: ignore[arg-type]
    return dataclasses.replace(plan, config=config)


@dataclass(frozen=True)
class PrecisionTrial:
    """Some steps in one precision."""

    gradient: list[Tensor]  # of the network's initial weights
    seconds: float  # of a step without its views, the same on all processes


def try_steps(trainer: Trainer, views: Views, limit: float = math.inf) -> PrecisionTrial:
    """The gradient of a first step, and the time of further ones; none follows one that took longer than `limit`.

    The trainer is spent by that.
    """
    times: list[float] = []
    with seeded(trainer.config.seed, "precision"):  # the same dropout in both precisions
        trainer.step(views)
        gradient = [p.grad.clone() for p in trainer.objective.network.parameters() if p.grad is not None]
        while len(times) < TIMED_STEPS and max(times, default=0.0) <= limit:
            started = time.perf_counter()
            float(trainer.step(views)[0])  # waits for the device
            times.append(mean_over_ranks(time.perf_counter() - started))
    return PrecisionTrial(gradient, median(times))


def gradient_cosine(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """The cosine between two gradients, each of all weights as one vector; nan if one is zero or not finite.

    >>> one, other = [torch.ones(2), torch.zeros(1)], [torch.ones(2), torch.ones(1)]
    >>> round(gradient_cosine(one, one), 3), round(gradient_cosine(one, other), 3)
    (1.0, 0.816)
    """
    norms = math.sqrt(_dot(a, a)) * math.sqrt(_dot(b, b))
    return _dot(a, b) / norms if norms and math.isfinite(norms) else math.nan


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return sum(float(x.flatten().double() @ y.flatten().double()) for x, y in zip(a, b, strict=True))


def decide(cosine: float, float32: float, bf16: float, speedup: float = MIN_SPEEDUP) -> tuple[str, str]:
    """The precision and why, by the cosine between the gradients and the seconds of a step in each.

    >>> decide(0.998, float32=0.034, bf16=0.021)
    ('bf16', 'a step takes 21 ms, 1.6 times as fast as float32, and gradients agree (cosine 0.998)')
    >>> decide(0.998, float32=0.021, bf16=0.034)
    ('float32', 'bf16 is not faster here (34 against 21 ms a step)')
    """
    each = f"({milliseconds(bf16)} against {milliseconds(float32)} ms a step)"
    if float32 < speedup * bf16:
        return "float32", f"bf16 is {'not' if float32 <= bf16 else 'hardly'} faster here {each}"
    if not cosine >= MIN_COSINE:  # nan too
        return "float32", f"gradients of bf16 differ too much (cosine {cosine:.3f}, at least {MIN_COSINE:g} is needed)"
    ratio = f"{float32 / bf16:.1f} times as fast as float32"
    return "bf16", f"a step takes {milliseconds(bf16)} ms, {ratio}, and gradients agree (cosine {cosine:.3f})"


def milliseconds(seconds: float) -> str:
    """A time in milliseconds, with two digits at least.

    >>> milliseconds(0.0034), milliseconds(0.0214), milliseconds(1.5)
    ('3.4', '21', '1,500')
    """
    value = 1000 * seconds
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"
