"""How much of the gradient is signal: running mean against running variance, per weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from effssl.network.network import Network

EPSILON = 1e-12


class GradientNoise:
    """Signal-to-noise ratio of the gradients of f and g, whatever heads a term may have.

    m ← βm + (1 − β)g, v ← βv + (1 − β)(g − m)², both corrected for their start at zero. `snr` is the mean of m²/v,
    which does not change when the loss is scaled; `snr_abs` is that of |m|/√v, and `snr_literal` that of |m|/v.
    """

    def __init__(self, network: Network, beta: float = 0.99) -> None:
        self.parameters = list(network.parameters())
        self.beta, self.count = beta, 0
        total = sum(p.numel() for p in self.parameters)
        device = self.parameters[0].device
        self.m, self.v = torch.zeros(total, device=device), torch.zeros(total, device=device)

    @torch.no_grad()
    def observe(self) -> dict[str, Tensor]:
        """Take in the gradients as they are now, unscaled and before decay, and return the ratios."""
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        g = torch.cat([part.flatten() for part in parts]).float()
        self.count += 1
        self.m.lerp_(g, 1 - self.beta)
        self.v.lerp_((g - self.m).square(), 1 - self.beta)
        correction = 1 - self.beta**self.count
        m, v = (self.m / correction).abs(), (self.v / correction).clamp(min=EPSILON)
        return {"snr": (m * m / v).mean(), "snr_abs": (m / v.sqrt()).mean(), "snr_literal": (m / v).mean()}

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"m": self.m, "v": self.v, "count": self.count}

    def restore(self, state: dict[str, Any]) -> None:
        """From the checkpoint."""
        self.m.copy_(state["m"])
        self.v.copy_(state["v"])
        self.count = state["count"]
