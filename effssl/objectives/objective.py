"""The shapes every objective is made of: views of a batch, one step over them, a term, and the sum of terms."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from effssl.config import TERMS, Config
from effssl.network import Network
from effssl.randomness import generator, seeded


@dataclass(frozen=True)
class Needs:
    """What a term reads of a batch; the pipeline makes only what is needed."""

    large: int = 2


@dataclass(frozen=True)
class Views:
    """One batch as the terms see it. In a run of many processes a rank holds `rows` of the `total` images."""

    large: list[Tensor]  # each B×3×S×S, normalized
    index: Tensor  # B, row of each image in the data set, on the CPU
    seed: int = 0
    step: int = 0
    total: int = 0
    rows: slice = field(default_factory=lambda: slice(None))

    def generator(self, purpose: str) -> torch.Generator:
        """The random numbers of one purpose in this step, for the whole batch over all ranks."""
        return generator(self.seed, purpose, self.step)


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
        self._done: dict[str, Tensor] = {}

    def run(self, module: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """module(x) in the run's precision, returned as float32."""
        with self._autocast():
            return module(x).float()

    def passes(self, module: Callable[[Tensor], Tensor]) -> Tensor:
        """module over the two large views: in one pass, or in one pass each so that batch norm sees one view."""
        groups = [torch.cat(self.views.large)] if self.joint_pass else self.views.large
        return torch.cat([self.run(module, x) for x in groups])

    def h(self) -> Tensor:
        """Features of the large views, (2·B)×h_dim: first all first views, then all second ones."""
        if "h" not in self._done:
            self._done["h"] = self.passes(self.network.f)
        return self._done["h"]

    def z(self) -> Tensor:
        """Projections of the large views, (2·B)×z_dim."""
        if "z" not in self._done:
            parts = [self.h()] if self.joint_pass else self.h().chunk(len(self.views.large))
            self._done["z"] = torch.cat([self.run(self.network.g, h) for h in parts])
        return self._done["z"]


@dataclass(frozen=True)
class Outcome:
    """What a term says about a batch: its loss, and figures worth logging (tensors, so that nobody waits for them)."""

    loss: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)


class Term(nn.Module):
    """One summand. It holds its own heads and momentum copies and never registers the network itself."""

    needs = Needs()

    def __init__(self, options: Any, network: Network, alone: bool) -> None:
        """`alone`: no term of the objective compares views of an image."""
        super().__init__()
        self.options = options

    def loss(self, step: Step) -> Outcome:
        """The unweighted loss of this batch."""
        raise TypeError(f"{type(self).__name__} does not define its loss")

    def after_update(self, network: Network, progress: float) -> None:
        """Called after each real optimizer step with the share of the run that is done: momentum, queues."""

    def fixed_lr(self) -> list[nn.Parameter]:
        """Parameters whose learning rate is not scheduled."""
        return []


class Objective(nn.Module):
    """L = Σ wₖ·Lₖ over terms that share one network."""

    def __init__(self, network: Network, terms: dict[str, Term], weights: dict[str, float], config: Config) -> None:
        super().__init__()
        self.network = network
        self.terms = nn.ModuleDict(terms)
        self.weights = weights
        self.joint_pass = config.joint_pass
        self.autocast: Callable[[], AbstractContextManager[Any]] = nullcontext

    def items(self) -> Iterator[tuple[str, Term]]:
        """The terms with their names, in the order they were written."""
        for name, term in self.terms.items():
            assert isinstance(term, Term)
            yield name, term

    @property
    def large(self) -> int:
        """How many views of each image are needed."""
        return max(term.needs.large for _, term in self.items())

    def outcomes(self, views: Views) -> dict[str, Outcome]:
        """Every term's own loss and figures."""
        step = Step(self.network, views, self.joint_pass, self.autocast)
        return {name: term.loss(step) for name, term in self.items()}

    def forward(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        outcomes = self.outcomes(views)
        total = torch.stack([self.weights[name] * outcome.loss for name, outcome in outcomes.items()]).sum()
        metrics = {f"loss/{name}": outcome.loss.detach() for name, outcome in outcomes.items()}
        for outcome in outcomes.values():
            metrics |= outcome.metrics
        return total, metrics

    def after_update(self, progress: float) -> None:
        """Let momentum copies and the like follow a step that was really taken."""
        for _, term in self.items():
            term.after_update(self.network, progress)


def build_objective(config: Config, weights: dict[str, float], network: Network, instance: bool) -> Objective:
    """Build the terms; each draws its initial weights from a seed of its own, so none disturbs another."""
    terms: dict[str, Term] = {}
    for name in weights:
        module, cls = TERMS[name].split(":")
        with seeded(config.seed, "init", name):
            terms[name] = getattr(importlib.import_module(module), cls)(getattr(config, name), network, not instance)
    return Objective(network, terms, weights, config)
