"""Momentum copies: networks that follow another one slowly."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def momentum_copy(module: M) -> M:
    """A copy with weights and batch norm buffers of its own that no gradient reaches."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def ema_update(target: nn.Module, online: nn.Module, momentum: float) -> None:
    """ψ ← τψ + (1 − τ)θ for all weights; buffers are the target's own."""
    torch._foreach_lerp_(list(target.parameters()), [p.detach() for p in online.parameters()], 1 - momentum)
