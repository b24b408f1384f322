"""SGD, LARS, AdamW and Muon over the parameters of an objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from effssl.config import Optimizer as OptimizerSettings
from effssl.objectives.objective import Objective

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan's coefficients: five steps take singular values to about 0.7 … 1.2
MUON_ROWS = 8  # a weight with fewer output channels is left to AdamW
MUON_BETAS = (0.9, 0.98)  # of AdamW beside Muon


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


def orthogonalize(x: Tensor) -> Tensor:
    """Matrices N×R×C with the same singular vectors and all singular values near 1, by Newton–Schulz in five steps.

    A step X ← aX + bAX + cA²X with A = XXᵀ multiplies X from the left by P = aI + bA + cA², which commutes with A. So
    the steps are taken on the Gram matrix of the smaller side alone, A ← PAP, and X is multiplied once, by all P.
    """
    if x.shape[1] > x.shape[2]:
        return orthogonalize(x.mT).mT
    gram = torch.bmm(x, x.mT)
    length = gram.diagonal(dim1=1, dim2=2).sum(1).sqrt().clamp(min=1e-12)[:, None, None]  # Frobenius norm of X
    gram = gram / length**2
    all_p = p = _polynomial(gram)
    for _ in range(4):
        gram = torch.bmm(torch.bmm(p, gram), p)
        p = _polynomial(gram)
        all_p = torch.bmm(p, all_p)
    return torch.bmm(all_p / length, x)


def _polynomial(gram: Tensor) -> Tensor:
    """The P of one step, N×R×R."""
    a, b, c = NEWTON_SCHULZ
    p = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    p.diagonal(dim1=1, dim2=2).add_(a)
    return p


class Muon(torch.optim.Optimizer):
    """SGD with momentum whose update of a weight matrix is orthogonalized. Jordan et al. 2024.

    A convolution is a matrix of out × (in·k·k). Groups with `adamw` take steps of AdamW without decay. torch's own Muon
    takes matrices only, one at a time, and multiplies the whole matrix in every step: here equal shapes go together.
    """

    def __init__(self, params: Any, lr: float, momentum: float, weight_decay: float, nesterov: bool) -> None:
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov, "adamw": False}
        super().__init__(params, settings)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            pairs = [(p, p.grad) for p in group["params"] if p.grad is not None]
            if pairs:
                params, grads = map(list, zip(*pairs, strict=True))
                update = self._adamw if group["adamw"] else self._muon
                update(group, params, grads)

    def _muon(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        lr, momentum = group["lr"], group["momentum"]
        for p in params:
            if not self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        buffers = [self.state[p]["momentum_buffer"] for p in params]
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, grads)
        updates = torch._foreach_add(grads, buffers, alpha=momentum) if group["nesterov"] else buffers
        torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        same_shape: dict[tuple[int, int], list[int]] = {}
        for i, p in enumerate(params):
            same_shape.setdefault((len(p), p.numel() // len(p)), []).append(i)
        for (rows, cols), members in same_shape.items():
            x = torch.stack([updates[i].flatten(1) for i in members])  # N×R×C
            x = orthogonalize(x.to(torch.promote_types(x.dtype, torch.float32)))
            weights = [params[i] for i in members]
            steps = [one.reshape(p.shape) for one, p in zip(x, weights, strict=True)]
            torch._foreach_add_(weights, steps, alpha=-lr * max(1, rows / cols) ** 0.5)

    def _adamw(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        for p in params:
            if not self.state[p]:
                self.state[p]["step"] = torch.tensor(0.0, dtype=torch.float32)  # on the CPU, where torch's AdamW has it
                self.state[p]["exp_avg"] = torch.zeros_like(p)
                self.state[p]["exp_avg_sq"] = torch.zeros_like(p)
        means, squares, steps = ([self.state[p][key] for p in params] for key in ("exp_avg", "exp_avg_sq", "step"))
        beta1, beta2 = MUON_BETAS
        adamw(
            params, grads, means, squares, [], steps, foreach=True, amsgrad=False, beta1=beta1, beta2=beta2,
            lr=group["lr"], weight_decay=0.0, eps=1e-8, maximize=False,
        )  # fmt: skip


def build_optimizer(settings: OptimizerSettings, objective: Objective, lr: float) -> torch.optim.Optimizer:
    """One optimizer for all weights, in groups: scheduled, and held at `lr` (a predictor whose rate is fixed).

    AdamW and Muon split each in two: matrices, and the rest, without decay. The rest are biases, norms, embeddings and
    tokens; for Muon also thin matrices and the output layers of terms. The first group is always of scheduled matrices.
    """
    fixed = [p for _, term in objective.items() for p in term.fixed_lr()]
    held = {id(p) for p in fixed}
    scheduled = [p for p in objective.parameters() if p.requires_grad and id(p) not in held]
    groups = _by_stage(scheduled, objective, settings.layer_decay)
    if fixed:
        groups.append({"params": fixed, "scheduled": False})
    if settings.name == "lars":
        return LARS(groups, lr, settings.momentum, settings.weight_decay, settings.trust, settings.trust_clip)
    if settings.name == "adamw":
        groups = _split(groups, _matrices(objective), {"weight_decay": 0.0})
        return torch.optim.AdamW(groups, lr, settings.betas, weight_decay=settings.weight_decay, foreach=True)
    if settings.name == "muon":
        thin = {id(p) for p in objective.parameters() if p.ndim and len(p) < MUON_ROWS}
        rest = {"adamw": True, "lr": settings.adamw_lr, "lr_ratio": settings.adamw_lr / lr}
        groups = _split(groups, _matrices(objective) - _output_layers(objective.terms) - thin, rest)
        return Muon(groups, lr, settings.momentum, settings.weight_decay, settings.nesterov)
    return torch.optim.SGD(
        groups, lr, settings.momentum, weight_decay=settings.weight_decay, nesterov=settings.nesterov, foreach=True
    )


def _matrices(objective: Objective) -> set[int]:
    """Weights with more than one dimension, by identity; embeddings and tokens are not among them."""
    embeddings = {id(module.weight) for module in objective.modules() if isinstance(module, nn.Embedding)}
    weights = {id(p) for name, p in objective.named_parameters() if name.endswith("weight") and p.ndim > 1}
    return weights - embeddings


def _output_layers(terms: nn.Module) -> set[int]:
    """Weights of the last layers of the terms' heads (classifiers, prototypes, predictors), by identity."""
    heads = [head for term in terms.children() for head in term.children()]
    layers = [layer for head in heads for layer in (head if isinstance(head, nn.Sequential) else [head])[-1:]]
    return {id(layer.weight) for layer in layers if isinstance(layer, nn.Linear)}


def _by_stage(params: list[nn.Parameter], objective: Objective, decay: float) -> list[dict[str, Any]]:
    """One group or, with layer-wise decay of the learning rate, heads first and then each stage of the encoder."""
    if decay == 1:
        return [{"params": params, "scheduled": True}]
    stages = objective.network.encoder.stages()
    ratios = {id(p): decay ** (len(stages) - i) for i, stage in enumerate(stages) for p in stage.parameters()}
    found = dict.fromkeys([1.0, *ratios.values()])
    return [
        {"params": [p for p in params if ratios.get(id(p), 1.0) == ratio], "scheduled": True, "layer_ratio": ratio}
        for ratio in found
    ]


def _split(groups: list[dict[str, Any]], first: set[int], settings_of_rest: dict[str, Any]) -> list[dict[str, Any]]:
    """Each group as two: parameters in `first`, and the rest with settings of its own. Either may be empty."""
    parts = []
    for group in groups:
        chosen = [p for p in group["params"] if id(p) in first]
        rest = [p for p in group["params"] if id(p) not in first]
        parts += [group | {"params": chosen}, group | {"params": rest} | settings_of_rest]
    return parts


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every scheduled group this learning rate, or its fixed multiple of it."""
    for group in optimizer.param_groups:
        if group["scheduled"]:
            group["lr"] = lr * group.get("lr_ratio", 1.0) * group.get("layer_ratio", 1.0)
