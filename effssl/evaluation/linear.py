"""A linear layer on frozen features.

The features are computed once (no augmentation). Several learning rates are trained side by side in one pass; one is
chosen on a validation split cut from train, then a fresh layer is trained on all of train and read once on test.
"""

from __future__ import annotations

import torch
from torch import Tensor

from effssl.data import Data
from effssl.data.sets import validation_split
from effssl.errors import RequestError
from effssl.evaluation.features import Features, extract
from effssl.evaluation.score import Score
from effssl.network.loaded import LoadedEncoder
from effssl.progress import counter
from effssl.randomness import generator

LEARNING_RATES = (0.1, 0.5, 1.0, 1.5, 2.0)  # the paper's grid
MOMENTUM = 0.9
MILESTONES, DECAY = (0.6, 0.75, 0.9), 0.2  # of the epochs; lr × 0.2 at each


def train_linear(
    train: Features,
    classes: int,
    lrs: tuple[float, ...],
    epochs: int,
    batch: int,
    seed: int,
    test: Features | None = None,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Train one linear layer per learning rate by SGD: weights L×D×classes, biases L×1×classes, accuracy per epoch.

    `test`, if given, is only looked at to report the best epoch beside the last one.
    """
    assert train.labels is not None
    dim, g = train.h.shape[1], generator(seed, "linear")
    bound = dim**-0.5  # torch's own initialization of a linear layer
    weight = (torch.rand(1, dim, classes, generator=g) * 2 - 1).mul(bound).repeat(len(lrs), 1, 1)
    bias = (torch.rand(1, 1, classes, generator=g) * 2 - 1).mul(bound).repeat(len(lrs), 1, 1)
    v_weight, v_bias = torch.zeros_like(weight), torch.zeros_like(bias)
    base = torch.tensor(lrs).view(-1, 1, 1)
    history = []
    with torch.inference_mode(), counter("linear probe", epochs) as advance:
        for epoch in range(epochs):
            lr = base * DECAY ** sum(epoch >= share * epochs for share in MILESTONES)
            for rows in torch.randperm(len(train.h), generator=g).split(batch):
                x, y = train.h[rows], train.labels[rows]
                # The gradient of mean cross-entropy is x ᵀ(softmax − onehot)/B, for all learning rates at once.
                error = (x @ weight + bias).softmax(-1)  # L×B×classes
                error[:, torch.arange(len(rows)), y] -= 1
                error /= len(rows)
                v_weight.mul_(MOMENTUM).add_(x.T @ error)
                v_bias.mul_(MOMENTUM).add_(error.sum(1, keepdim=True))
                weight -= lr * v_weight
                bias -= lr * v_bias
            if test is not None:
                history.append(linear_accuracy(weight, bias, test))
            advance(1)
    return weight, bias, history


def linear_accuracy(weight: Tensor, bias: Tensor, test: Features) -> Tensor:
    """Percent right, one per learning rate."""
    assert test.labels is not None
    right = [
        ((x @ weight + bias).argmax(-1) == y).sum(1)
        for x, y in zip(test.h.split(5000), test.labels.split(5000), strict=True)
    ]
    return 100 * torch.stack(right).sum(0) / len(test.h)


def evaluate_linear(
    encoder: LoadedEncoder,
    data: Data,
    lr: float | None = None,
    epochs: int = 100,
    batch: int = 512,
    seed: int = 0,
) -> Score:
    """Accuracy at the last epoch (primary) and at the best one on test (secondary, as reference scripts report it)."""
    assert data.test is not None
    if epochs < 1:
        raise RequestError(f"the probe needs at least one epoch, not {epochs}")
    train, test = extract(encoder, data.train, "train features"), extract(encoder, data.test, "test features")
    assert train.labels is not None
    classes = int(train.labels.max()) + 1
    chosen_on = "given"
    if lr is None:
        if data.held_out is not None:
            fit, val = train, extract(encoder, data.held_out, "validation features")
        else:
            fit, val = (train.among(rows) for rows in validation_split(data.train))
        weight, bias, _ = train_linear(fit, classes, LEARNING_RATES, epochs, batch, seed)
        on_val = linear_accuracy(weight, bias, val)
        lr, chosen_on = LEARNING_RATES[int(on_val.argmax())], f"validation ({len(val.h)} images of train)"
    weight, bias, history = train_linear(train, classes, (lr,), epochs, batch, seed, test)
    constants = {
        "optimizer": "SGD", "momentum": MOMENTUM, "weight_decay": 0.0, "batch": batch, "epochs": epochs,
        "lr": lr, "lr_chosen_on": chosen_on, "lr_grid": list(LEARNING_RATES),
        "lr_decay": f"x{DECAY} at {', '.join(str(round(m * epochs)) for m in MILESTONES)}",
        "features": "h, cached, no augmentation", "seed": seed,
    }  # fmt: skip
    also = {"best_epoch_accuracy": max(float(a) for a in history)}
    return Score("linear", float(history[-1]), constants, also)
