"""A linear layer on frozen features.

Several learning rates are trained side by side in one pass over the features; one is chosen on a validation split cut
from train, then a fresh layer is trained on all of train and read once on test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from effssl.config import Augment
from effssl.data import Data, Images
from effssl.data.loader import ViewLoader
from effssl.data.sets import validation_split
from effssl.data.views import Needs
from effssl.evaluation.options import Linear
from effssl.evaluation.score import Score
from effssl.features.extract import Features, extract, labelled
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import counter
from effssl.runtime.randomness import generator

MOMENTUM = 0.9


@dataclass(frozen=True)
class Setting:
    """Constants of one published probe."""

    lrs: tuple[float, ...]
    batch: int
    marks: tuple[float, ...] = ()  # shares of the epochs after which lr is multiplied by `factor`; none: cosine to 0
    factor: float = 0.2
    weight_decay: float = 0.0
    init_std: float = 0.0  # of the weights; 0 is torch's own initialization
    augmented: bool = True  # random resized crops and flips, in place of features that are computed once

    def rate(self, share: float) -> float:
        """What the learning rate is multiplied by when this share of the epochs is done."""
        if self.marks:
            return self.factor ** sum(share >= mark for mark in self.marks)
        return (1 + math.cos(math.pi * share)) / 2

    def decay(self, epochs: int) -> str:
        """The schedule in words."""
        marks = ", ".join(str(round(mark * epochs)) for mark in self.marks)
        return f"x{self.factor} at {marks}" if marks else "cosine to 0"


SETTINGS = {
    "cached": Setting((0.1, 0.5, 1.0, 1.5, 2.0), 512, marks=(0.6, 0.75, 0.9), augmented=False),  # the paper's grid
    "simsiam": Setting((30.0,), 512),
    "simclr": Setting((1.0,), 256, marks=(0.6, 0.8), factor=0.1),
    "swav": Setting((0.3,), 256, weight_decay=1e-6, init_std=0.01),
}
CROPS = {"scale": (0.08, 1.0), "flip": 0.5, "jitter": 0.0, "gray": 0.0}

Batches = Callable[[int], Iterator[tuple[Tensor, Tensor]]]
"""Batches of an epoch: features B×D and labels B."""


def cached_batches(features: Features, batch: int, g: torch.Generator) -> Batches:
    """The same features in every epoch, in another order."""
    h, labels = features.h, features.labels
    assert labels is not None

    def epoch(_: int) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.randperm(len(h), generator=g).split(batch):
            yield h[rows], labels[rows]

    return epoch


def augmented_batches(
    encoder: LoadedEncoder, images: Images, batch: int, seed: int, seen: Tensor | None = None
) -> Batches:
    """Features of random crops and flips, computed anew in every epoch; no image is left out.

    `seen`, one boolean per image, becomes true where a file could be read.
    """
    loader = crops_of(encoder, images, min(batch, len(images)), seed)
    assert images.labels is not None
    labels = images.labels

    def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
        for views in loader.epoch(number):
            if seen is not None:
                seen[views.index] = True
            yield encoder.encoder(views.large[0]).float().cpu(), labels[views.index]

    return epoch


def crops_of(encoder: LoadedEncoder, images: Images, batch: int, seed: int) -> ViewLoader:
    """Random resized crops and flips of training images, as the encoder wants them."""
    augment = Augment(mean=tuple(encoder.about["mean"]), std=tuple(encoder.about["std"]), **CROPS)  # type: ignore[arg-type]
    return ViewLoader(images, augment, Needs(large=1), batch, encoder.size, seed, encoder.device, keep_partial=True)


def train_linear(
    batches: Batches,
    dim: int,
    classes: int,
    setting: Setting,
    lrs: tuple[float, ...],
    epochs: int,
    g: torch.Generator,
    test: Features | None = None,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Train one linear layer per learning rate by SGD: weights L×D×classes, biases L×1×classes, accuracy per epoch.

    `test`, if given, is only looked at to report the best epoch beside the last one.
    """
    bound = dim**-0.5  # torch's own initialization of a linear layer
    weight = (torch.rand(1, dim, classes, generator=g) * 2 - 1).mul(bound)
    bias = (torch.rand(1, 1, classes, generator=g) * 2 - 1).mul(bound)
    if setting.init_std:
        weight, bias = torch.randn(1, dim, classes, generator=g) * setting.init_std, torch.zeros(1, 1, classes)
    weight, bias = weight.repeat(len(lrs), 1, 1), bias.repeat(len(lrs), 1, 1)
    v_weight, v_bias = torch.zeros_like(weight), torch.zeros_like(bias)
    base = torch.tensor(lrs).view(-1, 1, 1)
    history = []
    with torch.inference_mode(), counter("linear probe, epochs", epochs) as advance:
        for epoch in range(epochs):
            lr = base * setting.rate(epoch / epochs)
            for x, y in batches(epoch):
                # The gradient of mean cross-entropy is xᵀ(softmax − onehot)/B, for all learning rates at once.
                error = (x @ weight + bias).softmax(-1)  # L×B×classes
                error[:, torch.arange(len(y)), y] -= 1
                error /= len(y)
                v_weight.mul_(MOMENTUM).add_(x.T @ error).add_(weight, alpha=setting.weight_decay)
                v_bias.mul_(MOMENTUM).add_(error.sum(1, keepdim=True)).add_(bias, alpha=setting.weight_decay)
                weight -= lr * v_weight
                bias -= lr * v_bias
            if test is not None:
                history.append(linear_accuracy(weight, bias, test))
            advance(1)
    return weight, bias, history


def linear_accuracy(weight: Tensor, bias: Tensor, test: Features, top: int = 1) -> Tensor:
    """Percent of images whose class is among the `top` best guesses, one per learning rate."""
    assert test.labels is not None
    right = [
        ((x @ weight + bias).topk(top).indices == y[:, None]).any(-1).sum(1)
        for x, y in zip(test.h.split(5000), test.labels.split(5000), strict=True)
    ]
    return 100 * torch.stack(right).sum(0) / len(test.h)


def evaluate_linear(encoder: LoadedEncoder, data: Data, options: Linear) -> Score:
    """Accuracy at the last epoch (primary) and at the best one on test (secondary, as reference scripts report it)."""
    train, test_images = labelled(data, "linear")
    setting, classes = SETTINGS[options.setting], len(train.classes)
    if options.schedule == "cosine":
        setting = replace(setting, marks=())
    lrs, batch, seed = options.lr or setting.lrs, options.batch or setting.batch, options.seed
    test = extract(encoder, test_images, "test features")
    whole = None if setting.augmented else extract(encoder, train, "train features")
    seen = torch.zeros(len(train), dtype=torch.bool)

    def probe(rows: Tensor | None, rates: tuple[float, ...], on: Features | None) -> tuple[Tensor, Tensor, list]:
        """Train on some rows of train (or all)."""
        g = generator(seed, "linear")
        if whole is None:
            part = train if rows is None else train.select(rows)
            batches = augmented_batches(encoder, part, batch, seed, seen if rows is None else None)
        else:
            batches = cached_batches(whole if rows is None else whole.among(rows), batch, g)
        return train_linear(batches, encoder.dim, classes, setting, rates, options.epochs, g, on)

    lr, chosen_on = lrs[0], "given" if options.lr else "the setting's"
    if len(lrs) > 1:
        fit, held_out = (None, data.held_out) if data.held_out is not None else validation_split(train)
        if isinstance(held_out, Tensor):
            val = whole.among(held_out) if whole else extract(encoder, train.select(held_out), "validation features")
        else:
            val = extract(encoder, held_out, "validation features")
        if not len(val.h):
            raise RequestError(f"none of the validation images of {data.name} can be decoded; give one --lr")
        weight, bias, _ = probe(fit, lrs, None)
        lr = lrs[int(linear_accuracy(weight, bias, val).argmax())]
        chosen_on = f"validation ({len(val.h)} images{' of train' if data.held_out is None else ''})"
    weight, bias, history = probe(None, (lr,), test)
    constants = {
        "setting": options.setting, "optimizer": "SGD", "momentum": MOMENTUM, "weight_decay": setting.weight_decay,
        "batch": batch, "epochs": options.epochs, "lr": lr, "lr_chosen_on": chosen_on, "lr_grid": list(lrs),
        "lr_decay": setting.decay(options.epochs),
        "features": "h, random crops and flips" if setting.augmented else "h, cached, no augmentation", "seed": seed,
    }  # fmt: skip
    also = {"best_epoch_accuracy": max(float(a) for a in history)}
    if classes > 5:
        also["top5"] = float(linear_accuracy(weight, bias, test, top=5))
    score = Score("linear", float(history[-1]), constants=constants, also=also)
    rows = seen.nonzero().squeeze(1) if whole is None else whole.rows
    return score.on(data, train=(train, rows), test=(test_images, test.rows))
