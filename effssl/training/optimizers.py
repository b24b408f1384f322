"""SGD and LARS over the parameters of an objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from effssl.config import Optimizer as OptimizerSettings
from effssl.objectives.objective import Objective


class LARS(torch.optim.Optimizer):
    """SGD whose step is scaled per layer to a share of the weight's own length. You et al. 2017.

    Parameters with one dimension (biases, norms) take plain SGD steps without decay.
    """

    def __init__(
        self, params: Any, lr: float, momentum: float, weight_decay: float, trust: float, trust_clip: bool
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.trust = trust
        self.trust_clip = trust_clip

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            adapted = [p for p in params if p.ndim > 1]
            updates: dict[nn.Parameter, torch.Tensor] = {p: p.grad for p in params if p.grad is not None}
            if adapted:
                grads = [updates[p] for p in adapted]
                w_norm = torch.stack(torch._foreach_norm(adapted))
                g_norm = torch.stack(torch._foreach_norm(grads))
                decay = group["weight_decay"]
                ratio = self.trust * w_norm / (g_norm + decay * w_norm + 1e-12)
                ratio = torch.where((w_norm > 0) & (g_norm > 0), ratio, torch.ones_like(ratio))
                if self.trust_clip:
                    ratio = (ratio / group["lr"]).clamp(max=1) if group["lr"] > 0 else ratio
                scaled = torch._foreach_add(grads, adapted, alpha=decay)
                torch._foreach_mul_(scaled, list(ratio.unbind()))
                updates |= dict(zip(adapted, scaled, strict=True))
            for p, update in updates.items():
                state = self.state[p]
                buffer = state.get("momentum_buffer")
                if buffer is None:
                    buffer = state["momentum_buffer"] = torch.clone(update).detach()
                else:
                    buffer.mul_(group["momentum"]).add_(update)
                p.add_(buffer, alpha=-group["lr"])


def build_optimizer(settings: OptimizerSettings, objective: Objective, lr: float) -> torch.optim.Optimizer:
    """One optimizer for all weights, in two groups: scheduled, and held at `lr` (a predictor whose rate is fixed)."""
    fixed = [p for _, term in objective.items() for p in term.fixed_lr()]
    held = {id(p) for p in fixed}
    scheduled = [p for p in objective.parameters() if p.requires_grad and id(p) not in held]
    groups: list[dict[str, Any]] = [{"params": scheduled, "scheduled": True}]
    if fixed:
        groups.append({"params": fixed, "scheduled": False})
    if settings.name == "lars":
        return LARS(groups, lr, settings.momentum, settings.weight_decay, settings.trust, settings.trust_clip)
    return torch.optim.SGD(
        groups, lr, settings.momentum, weight_decay=settings.weight_decay, nesterov=settings.nesterov, foreach=True
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every scheduled group this learning rate."""
    for group in optimizer.param_groups:
        if group["scheduled"]:
            group["lr"] = lr
