"""The shapes every objective is made of: one step over the views of a batch, a term, and the sum of terms."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from effssl.config import Config
from effssl.data.views import Needs, Views
from effssl.network import Network
from effssl.objectives.options import FOR_BASE, OWN, TERMS, Plain, feeds_base
from effssl.runtime.distribution import rank, world
from effssl.runtime.errors import RequestError
from effssl.runtime.randomness import seeded


@dataclass(frozen=True)
class Setting:
    """What a term may know of the run it is part of."""

    seed: int = 0
    alone: bool = False  # no term of the objective compares views of an image
    image_size: int = 32
    batch_size: int = 128
    together: int = 128  # images of a batch that one process computes at a time
    steps_per_epoch: int = 1
    labels: Tensor | None = None  # of all training images, on the CPU
    classes: int = 0


class Step:
    """One batch on its way through the network; each pass runs once, whoever reads it.

    Networks and heads run under autocast if the run asks for it; what they return is float32, and so are all losses.
    """

    def __init__(
        self,
        network: Network,
        views: Views,
        joint_pass: bool = False,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.network, self.views, self.joint_pass, self._autocast = network, views, joint_pass, autocast
        self._h: dict[str, Tensor] = {}
        self._z: dict[str, Tensor] = {}
        self.rotated: tuple[Tensor, Tensor] | None = None  # labels and features of rotated views, once they are there
        self.more: Tensor | None = None  # (n·B)×z_dim: projections of further views that base methods learn from too
        self.one_sided = False  # of the large views the first is learned from, and the second only gives the answers

    def run(self, module: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """module(x) in the run's precision, returned as float32."""
        with self._autocast():
            return module(x).float()

    def passes(self, module: Callable[[Tensor], Tensor], views: list[Tensor]) -> Tensor:
        """module over some views: in one pass, or in one pass each so that batch norm sees one view."""
        parts = [torch.cat(views)] if self.joint_pass else views
        return torch.cat([self.run(module, x) for x in parts])

    def learned(self, group: str = "large") -> list[Tensor]:
        """The views of a group that a gradient goes through."""
        views: list[Tensor] = getattr(self.views, group)
        return views[:1] if group == "large" and self.one_sided else views

    def answers(self, module: Callable[[Tensor], Tensor]) -> Tensor:
        """What module says without a gradient about the view that each view of `z` has to agree with: the other one."""
        views = self.views.large
        with torch.no_grad():
            return self.passes(module, views[1:]) if self.one_sided else swapped(self.passes(module, views))

    def h(self, group: str = "large") -> Tensor:
        """Features of the large (or small) views that are learned from, (n·B)×h_dim: all first, then all second."""
        if group not in self._h:
            self._h[group] = self.passes(self.network.f, self.learned(group))
        return self._h[group]

    def z(self, group: str = "large") -> Tensor:
        """Projections of the large (or small) views, (n·B)×z_dim."""
        if group not in self._z:
            h, count = self.h(group), len(self.learned(group))
            parts = [h] if self.joint_pass else h.chunk(count)
            self._z[group] = torch.cat([self.run(self.network.g, part) for part in parts])
        return self._z[group]


def swapped(z: Tensor) -> Tensor:
    """Second views first: (2·B)×D."""
    return z.roll(len(z) // 2, 0)


@dataclass(frozen=True)
class Outcome:
    """What a term says about a batch: its loss, and figures worth logging (tensors, so that nobody waits for them)."""

    loss: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)


class Term(nn.Module):
    """One summand. It holds its own heads and momentum copies and never registers the network itself."""

    Options: type = Plain
    needs = Needs()

    def __init__(self, options: Any, network: Network, setting: Setting) -> None:
        super().__init__()
        self.options = options

    def prepare(self, step: Step) -> None:
        """Called before the loss of any term: what this one makes may be of use to others."""

    def loss(self, step: Step) -> Outcome:
        """The unweighted loss of this batch."""
        raise TypeError(f"{type(self).__name__} does not define its loss")

    def presence(self, views: Views) -> float:
        """What the term's weight is multiplied by in a step; at 0 the term sits it out."""
        return 1.0

    def before_update(self, updates: int) -> None:
        """Called between backward and update with the number of updates so far: gradients may still be changed."""

    def after_update(self, network: Network, progress: float) -> None:
        """Called after each real optimizer step with the share of the run that is done: momentum, queues."""

    def fixed_lr(self) -> list[nn.Parameter]:
        """Parameters whose learning rate is not scheduled."""
        return []


class Pretext(Term):
    """A task whose options say in which steps it takes part (`every`, `until`) and how its weight falls."""

    def __init__(self, options: Any, network: Network, setting: Setting) -> None:
        super().__init__(options, network, setting)
        if setting.alone and (options.every > 1 or options.until < 1):
            raise RequestError("a task that stands alone cannot sit out steps; leave every and until as they are")

    def presence(self, views: Views) -> float:
        """0 in steps without the task, else a cosine from 1 to `weight_end`; a step's number decides."""
        options = self.options
        if views.step % options.every or views.done >= options.until:
            return 0.0
        return options.weight_end + (1 - options.weight_end) * (1 + math.cos(math.pi * views.done)) / 2


@contextmanager
def frozen_statistics(module: nn.Module, frozen: bool) -> Iterator[None]:
    """Let batch norm use the batch's statistics but leave its running ones as they are."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)] if frozen else []
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0  # running ← 1·running + 0·batch
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


class Objective(nn.Module):
    """L = Σ wₖ·Lₖ over terms that share one network."""

    def __init__(self, network: Network, terms: dict[str, Term], weights: dict[str, float], config: Config) -> None:
        super().__init__()
        self.network = network
        self.terms = nn.ModuleDict(terms)
        self.weights = weights
        self.config = config
        self.joint_pass = config.joint_pass
        self.autocast: Callable[[], AbstractContextManager[Any]] = nullcontext

    def items(self) -> Iterator[tuple[str, Term]]:
        """The terms with their names, in the order they were written."""
        for name, term in self.terms.items():
            assert isinstance(term, Term)
            yield name, term

    @property
    def needs(self) -> Needs:
        """What the terms need together."""
        each = [term.needs for _, term in self.items()]
        own = next((n.own for n in each if n.own is not None), None)
        return Needs(max(n.large for n in each), any(n.small for n in each), any(n.clean for n in each), own)

    def views(self, *large: Tensor, step: int, index: Tensor | None = None, **others: Any) -> Views:
        """Views of your own, each B×3×S×S and normalized; `step` names the random draws, so it must count up.

        `index` holds each image's row in the data set, for terms that know its label. Of `others`, `small`, `own` and
        `clean` are further views (see `Views`) for terms that need them; `done` is the share of the run that is over.
        """
        given, needs, count = Views(list(large), torch.empty(0), **others), self.needs, len(large[0]) if large else 0
        own = needs.own.count if needs.own else 0
        lacking = len(given.own) < own and len(large) < own  # in place of its own views a term takes the large ones
        if len(large) < needs.large or lacking or (needs.clean and given.clean is None):
            raise RequestError(
                f"{' + '.join(self.weights)} needs {needs.large} large views"
                + (f", {own} own" if own else "") + (" and the clean image" if needs.clean else "")
            )  # fmt: skip
        if index is None and any(getattr(term, "labels", None) is not None for _, term in self.items()):
            raise RequestError("these terms know labels: give index, each image's row in the data set")
        rows = torch.arange(count) if index is None else index
        mine = slice(rank() * count, (rank() + 1) * count)
        return replace(given, index=rows, seed=self.config.seed, step=step, total=world() * count, rows=mine)

    def present(self, views: Views) -> str:
        """The terms that take part in a step."""
        return "+".join(name for name, term in self.items() if term.presence(views) > 0)

    def outcomes(self, views: Views) -> dict[str, Outcome]:
        """Loss and figures of every term that takes part in a step."""
        step = Step(self.network, views, self.joint_pass, self.autocast)
        present = {name: term for name, term in self.items() if term.presence(views) > 0}
        for term in present.values():
            term.prepare(step)
        return {name: term.loss(step) for name, term in present.items()}

    def forward(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        outcomes, terms = self.outcomes(views), dict(self.items())
        parts = [self.weights[name] * terms[name].presence(views) * outcome.loss for name, outcome in outcomes.items()]
        # Processes that exchange gradients expect one for every weight, also of a term that sits out.
        idle = [
            (p * 0).sum()
            for name in terms.keys() - outcomes.keys()
            for p in terms[name].parameters()
            if p.requires_grad
        ]
        total = torch.stack([*parts, *idle]).sum()
        metrics = {f"loss/{name}": outcome.loss.detach() for name, outcome in outcomes.items()}
        for outcome in outcomes.values():
            metrics |= outcome.metrics
        return total, metrics

    def before_update(self, updates: int) -> None:
        """Let terms change gradients before they are used."""
        for _, term in self.items():
            term.before_update(updates)

    def after_update(self, progress: float) -> None:
        """Let momentum copies and the like follow a step that was really taken."""
        for _, term in self.items():
            term.after_update(self.network, progress)


def build_objective(config: Config, weights: dict[str, float], network: Network, setting: Setting) -> Objective:
    """Build the terms; each draws its initial weights from a seed of its own, so none disturbs another."""
    terms: dict[str, Term] = {}
    for name in weights:
        with seeded(config.seed, "init", name):
            terms[name] = term_class(name)(getattr(config, name), network, setting)
    asked = config.rotation.for_base if "rotation" in terms else "nothing"
    if asked != "nothing" and not feeds_base(config, terms, asked):
        raise RequestError(
            f"rotation.for_base {asked} goes with {', '.join(FOR_BASE[asked])} alone, with on z, form ce and one or "
            "two views, without shared and share; not with simclr's decoupled or known_labels nor without stop_gradient"
        )
    return Objective(network, terms, weights, config)


def term_class(name: str) -> type[Term]:
    """The class behind a term's name."""
    if name in OWN:
        return OWN[name]
    module, cls = TERMS[name].split(":")
    return getattr(importlib.import_module(module), cls)
