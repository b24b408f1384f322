"""One step of training: a batch on its way through the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from effssl.augment.options import ViewGroup
from effssl.data.views import Views
from effssl.network.network import Network

Module = Callable[[Tensor], Tensor]


class Step:
    """One batch on its way through the network; each pass runs once, whoever reads it.

    Features always have a view axis: V views of B images are V×B×D. Networks and heads run under autocast if the run
    asks for it; what they return is float32, and so are all losses.
    """

    def __init__(
        self,
        network: Network,
        views: Views,
        groups: Mapping[str, ViewGroup],
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        angle_embedding: nn.Module | None = None,
    ) -> None:
        self.network = network
        self.views = views
        self.groups = groups
        self.autocast = autocast
        self.angle_embedding = angle_embedding
        self._h: dict[str, Tensor] = {}
        self._z: dict[str, Tensor] = {}

    def run(self, module: Module, x: Tensor) -> Tensor:
        """module(x) in the run's precision, returned as float32."""
        with self.autocast():
            return module(x).float()

    def passes(self, module: Module, x: Tensor, group: str) -> Tensor:
        """module over the views of a group, V×B×…: in one pass, or in one each, so that batch norm sees one view."""
        settings = self.groups[group]
        with frozen_statistics(self.network, not settings.update_stats):
            if settings.joint_pass:
                return self.run(module, x.flatten(0, 1)).unflatten(0, x.shape[:2])
            return torch.stack([self.run(module, view) for view in x])

    def h(self, group: str) -> Tensor:
        """Features of a group of views, V×B×h_dim."""
        if group not in self._h:
            self._h[group] = self.passes(self.network.f, self.views.pixels[group], group)
        return self._h[group]

    def z(self, group: str) -> Tensor:
        """Projections of a group of views, V×B×z_dim."""
        if group not in self._z:
            self._z[group] = self.passes(self.network.g, self.h(group), group)
        return self._z[group]

    def online(self, space: str = "z") -> Tensor:
        """z (or h) of all online views, V×B×D; an angle embedding is added to z where the group asks for it."""
        if space == "h":
            return torch.cat([self.h(group) for group in self.online_groups])
        return torch.cat([self._with_angle(group) for group in self.online_groups])

    def _with_angle(self, group: str) -> Tensor:
        z = self.z(group)
        if self.angle_embedding is None or not self.groups[group].angle_embedding:
            return z
        return z + self.angle_embedding(self.views.angles[group].to(z.device, non_blocking=True))

    def targets(self, module: Module | None = None) -> Tensor:
        """What a module gives for all target views, T×B×D, without a gradient.

        Without a module: z of the network itself; that of views that are online too is reused and has a gradient.
        """
        parts = []
        for group in self.target_groups:
            if module is None and self.groups[group].online:
                parts.append(self.z(group))
                continue
            with torch.no_grad():
                parts.append(self.passes(module or self.network.project, self.views.pixels[group], group))
        return torch.cat(parts)

    def target_views(self) -> list[Tensor]:
        """The target views themselves, each B×3×S×S."""
        return [view for group in self.target_groups for view in self.views.pixels[group]]

    def predict(self, head: Module, z: Tensor) -> Tensor:
        """A predictor over online projections V×B×D, in the same passes as the views themselves."""
        parts = z.split([self.groups[group].views for group in self.online_groups])
        return torch.cat([self.passes(head, part, g) for g, part in zip(self.online_groups, parts, strict=True)])

    @cached_property
    def online_groups(self) -> list[str]:
        """Groups that a gradient goes through."""
        return [name for name, group in self.groups.items() if group.online]

    @cached_property
    def target_groups(self) -> list[str]:
        """Groups that give targets."""
        return [name for name, group in self.groups.items() if group.target]

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """All pairs of an online view v and a target view t; a view and itself make no pair."""
        return view_pairs(self.groups)

    @property
    def online_only(self) -> list[int]:
        """Which online views are not among the targets."""
        own = [self.groups[name].target for name in self.online_groups for _ in range(self.groups[name].views)]
        return [v for v, is_target in enumerate(own) if not is_target]


def view_pairs(groups: Mapping[str, ViewGroup]) -> list[tuple[int, int]]:
    """Numbers of online views and target views that are different views.

    >>> view_pairs({"large": ViewGroup(count=2, online=True, target=True)})
    [(0, 1), (1, 0)]
    >>> view_pairs({"large": ViewGroup(count=2, online=True), "target": ViewGroup(count=1, target=True)})
    [(0, 0), (1, 0)]
    """
    views = [(name, i) for name, group in groups.items() for i in range(group.views)]
    online = [view for view in views if groups[view[0]].online]
    targets = [view for view in views if groups[view[0]].target]
    return [(v, t) for v, one in enumerate(online) for t, other in enumerate(targets) if one != other]


@contextmanager
def frozen_statistics(module: nn.Module, frozen: bool) -> Iterator[None]:
    """Let batch norm use the batch's statistics and leave its running ones as they are."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)] if frozen else []
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0  # running ← 1·running + 0·batch
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
