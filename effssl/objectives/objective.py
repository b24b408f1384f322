"""An objective: L = Σ wₖ·Lₖ over terms that share one network."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from effssl.augment.options import ViewGroup
from effssl.data.derived import add_derived, resized
from effssl.data.views import Views
from effssl.network.network import Network
from effssl.objectives.options import TERMS
from effssl.objectives.step import Step, view_pairs
from effssl.objectives.term import Outcome, RunInfo, Term
from effssl.runtime.distribution import rank, world_size
from effssl.runtime.errors import RequestError
from effssl.runtime.randomness import seeded


class Objective(nn.Module):
    """L = Σ wₖ·Lₖ. It holds network and terms, so that DDP wraps one module."""

    config: Any = None  # of the run it was built for
    start_note: str = ""  # which weights the network starts from, if not from random ones

    def __init__(
        self, network: Network, terms: dict[str, Term], weights: Mapping[str, float], groups: Mapping[str, ViewGroup]
    ) -> None:
        super().__init__()
        self.network = network
        self.terms = nn.ModuleDict(terms)
        self.weights = dict(weights)
        self.groups = dict(groups)
        self.angle_embedding = angle_embedding(groups, network.z_dim)
        self.autocast: Callable[[], AbstractContextManager[Any]] = nullcontext

    def items(self) -> Iterator[tuple[str, Term]]:
        """The terms with their names, in the order they were written."""
        for name, term in self.terms.items():
            assert isinstance(term, Term)
            yield name, term

    @property
    def reads_clean(self) -> bool:
        """Whether a term reads the clean image."""
        return any("clean" in term.reads for _, term in self.items())

    def step(self, views: Views) -> Step:
        """A batch on its way through the network."""
        return Step(self.network, views, self.groups, self.autocast, self.angle_embedding)

    def views(self, *views: Tensor, step: int, index: Tensor | None = None, clean: Tensor | None = None) -> Views:
        """Views of your own, each B×3×S×S and normalized, as a batch; `step` names the random draws and must count up.

        They fill the declared groups in order: large, target, small. Rotated groups are rotated here; those with crops
        of their own take the first views instead. `index` holds each image's row in the data set, for terms that read
        its label; `clean` is the image itself, for terms that read it.
        """
        self._check_given(views, index, clean)
        sides = {name: group.side(self.config.image_size) for name, group in self.groups.items()}
        pixels, start = {}, 0
        for name in self._given_groups():
            stop = start + self.groups[name].count
            pixels[name] = stack_views(views[start:stop])
            start = stop
        for name in self.groups.keys() - pixels.keys():
            if not self.groups[name].copy_of:
                pixels[name] = resized(stack_views(views[: self.groups[name].count]), sides[name])
        count = len(views[0]) if clean is None else len(clean)
        rows = slice(rank() * count, (rank() + 1) * count)
        index = torch.arange(count) if index is None else index
        batch = Views(index, pixels, {}, clean, self.config.seed, step, world_size() * count, rows)
        return add_derived(batch, self.groups, sides)

    def _given_groups(self) -> list[str]:
        """Groups that the user's own views fill."""
        return [name for name in ("large", "target", "small") if name in self.groups]

    def _check_given(self, views: tuple[Tensor, ...], index: Tensor | None, clean: Tensor | None) -> None:
        needed = sum(self.groups[name].count for name in self._given_groups())
        needed = needed or max((group.count for group in self.groups.values()), default=0)
        if len(views) < needed:
            raise RequestError(f"{' + '.join(self.weights)} needs {needed} views, got {len(views)}")
        if self.reads_clean and clean is None:
            raise RequestError(f"{' + '.join(self.weights)} needs the clean image: clean=images, normalized")
        if index is None and any(term.options.uses_labels for _, term in self.items()):
            raise RequestError("these terms read labels: give index, each image's row in the data set")

    def outcomes(self, views: Views) -> dict[str, Outcome]:
        """Loss and figures of every term."""
        step = self.step(views)
        return {name: term.loss(step) for name, term in self.items()}

    def forward(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted sum, and figures to log: each term's loss, and accuracy and chance of each task."""
        outcomes = self.outcomes(views)
        total = sum(self.weights[name] * outcome.loss for name, outcome in outcomes.items())
        metrics: dict[str, Tensor] = {}
        for name, outcome in outcomes.items():
            metrics[f"loss/{name}"] = outcome.loss.detach()
            if outcome.accuracy is not None and outcome.chance is not None:
                metrics[f"accuracy/{name}"] = outcome.accuracy
                metrics[f"chance/{name}"] = outcome.accuracy.new_full((), outcome.chance)
            metrics |= outcome.metrics
        return total, metrics  # type: ignore[return-value]

    def before_update(self, updates: int) -> None:
        """Let terms change gradients before they are used."""
        for _, term in self.items():
            term.before_update(updates)

    def after_update(self, progress: float) -> None:
        """Let momentum copies and queues follow an optimizer step that was not skipped."""
        for _, term in self.items():
            term.after_update(self.network, progress)


def angle_embedding(groups: Mapping[str, ViewGroup], width: int) -> nn.Embedding | None:
    """An embedding of angles, zero at first, if a view group adds it to z."""
    sets = {group.angles for group in groups.values() if group.angle_embedding}
    if not sets:
        return None
    if len(sets) > 1:
        raise RequestError("view groups with an angle embedding need the same angles: see --views.rotated.angles")
    embedding = nn.Embedding(len(sets.pop()), width)
    nn.init.zeros_(embedding.weight)
    return embedding


def stack_views(views: Sequence[Tensor]) -> Tensor:
    """Views B×3×S×S as V×B×3×S×S, channels-last."""
    return torch.stack([view.permute(0, 2, 3, 1) for view in views]).permute(0, 1, 4, 2, 3)


def term_class(name: str) -> type[Term]:
    """The class behind a term's name."""
    where = TERMS[name].where
    if not isinstance(where, str):
        return where
    module, cls = where.split(":")
    return getattr(importlib.import_module(module), cls)


def groups_read(declared: Mapping[str, ViewGroup], terms: Sequence[str]) -> dict[str, ViewGroup]:
    """Of the declared view groups those that some term reads, and those that others are copies of."""
    roles = {role for name in terms for role in term_class(name).reads}
    read = {
        name
        for name, group in declared.items()
        if group.count and any(getattr(group, role) for role in ("online", "target", "rotated") if role in roles)
    }
    sources = {declared[name].copy_of for name in read} - {""}
    found = {name: group for name, group in declared.items() if name in read | sources}
    for name, group in found.items():
        if group.copy_of and (name == group.copy_of or group.count > declared[group.copy_of].count):
            source = f"views.{group.copy_of}.count is {declared[group.copy_of].count}"
            raise RequestError(f"views.{name} are {group.count} copies, and {source}; choose --views.{name}.count")
    for name in terms:
        if {"online", "target"} <= set(term_class(name).reads) and not view_pairs(found):
            raise RequestError(f"{name} needs an online view and another view as its target; see --views.large.count")
    if not found and "clean" not in roles:
        which = "rotated" if roles == {"rotated"} else "large"
        raise RequestError(f"no view group is declared that {' + '.join(terms)} reads; see --views.{which}.count")
    return found


def build_terms(options: Mapping[str, Any], network: Network, info: RunInfo) -> dict[str, Term]:
    """Build terms by their options; each draws its initial weights from a seed of its own and disturbs no other."""
    terms: dict[str, Term] = {}
    for name, settings in options.items():
        with seeded(info.seed, "init", name):
            terms[name] = term_class(name)(settings, network, info)
    return terms
