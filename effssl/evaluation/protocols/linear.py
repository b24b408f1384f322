"""Accuracy of a linear layer trained on frozen features.

Several learning rates are trained side by side in one pass over the features; one is chosen on a validation split cut
from train, then a fresh layer is trained on all of train and evaluated on test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from effssl.data import Data, Images
from effssl.data.dataset import validation_split
from effssl.evaluation.crops import crop_loader
from effssl.evaluation.protocol import EvaluationProtocol
from effssl.evaluation.score import Score
from effssl.features.extract import Features, extract, labelled
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import progress_bar
from effssl.runtime.randomness import generator
from effssl.schedules import cosine, step_decay
from effssl.schema import Between, Count, Positive, Seed

MOMENTUM = 0.9


@dataclass(frozen=True)
class LinearOptions:
    """Options of the linear probe."""

    setting: Literal["cached", "cifar-crops", "imagenet100-crops", "imagenet-crops"] = "cached"
    """cached: features without augmentation (CIFAR; BYOL on ImageNet-100); the others: random crops and flips, with the
    constants published for CIFAR (SimSiam), ImageNet-100 (SimCLR) and ImageNet (SwAV)"""
    lr: Annotated[tuple[float, ...], Between(1e-12)] = ()
    """learning rates; of several, one is chosen on a validation split of train. Default: the setting's own"""
    epochs: Positive = 100
    batch: Count = 0
    """images per step; 0 is the setting's own"""
    schedule: Literal["setting", "cosine"] = "setting"
    """how the learning rate decays: as the setting says, or by a cosine to 0"""
    seed: Seed = 0


@dataclass(frozen=True)
class LinearProbe:
    """Constants of a linear probe."""

    lrs: tuple[float, ...]
    batch: int
    epochs: int = 100
    milestones: tuple[float, ...] = ()  # shares of the epochs at which lr is multiplied by `factor`; none: cosine to 0
    factor: float = 0.2
    weight_decay: float = 0.0
    init_std: float = 0.0  # of the weights; 0 is torch's own initialization
    augmented: bool = True  # random resized crops and flips, in place of features that are computed once

    def rate(self, progress: float) -> float:
        """What the learning rate is multiplied by when this share of the epochs is done."""
        return step_decay(progress, self.milestones, self.factor) if self.milestones else cosine(progress)

    def decay(self) -> str:
        """The schedule in words."""
        epochs = ", ".join(str(round(milestone * self.epochs)) for milestone in self.milestones)
        return f"x{self.factor} at {epochs}" if epochs else "cosine to 0"


SETTINGS = {
    "cached": LinearProbe((0.1, 0.5, 1.0, 1.5, 2.0), 512, milestones=(0.6, 0.75, 0.9), augmented=False),
    "cifar-crops": LinearProbe((30.0,), 512),
    "imagenet100-crops": LinearProbe((1.0,), 256, milestones=(0.6, 0.8), factor=0.1),
    "imagenet-crops": LinearProbe((0.3,), 256, weight_decay=1e-6, init_std=0.01),
}


def evaluate_linear(encoder: LoadedEncoder, data: Data, options: LinearOptions) -> Score:
    """Accuracy at the last epoch (primary) and at the best one on test (secondary, as reference scripts report it)."""
    train, test_images = labelled(data, "linear")
    probe = linear_probe(options)
    test = extract(encoder, test_images, "test features")
    source = TrainingFeatures(encoder, train, probe, options.seed)
    lr, chosen_on = probe.lrs[0], "given" if options.lr else "the setting's"
    if len(probe.lrs) > 1:
        lr, chosen_on = choose_lr(source, data)
    weight, bias, history = source.train(lrs=(lr,), test=test)
    constants = {
        "setting": options.setting, "optimizer": "SGD", "momentum": MOMENTUM, "weight_decay": probe.weight_decay,
        "batch": probe.batch, "epochs": probe.epochs, "lr": lr, "lr_chosen_on": chosen_on, "lr_grid": list(probe.lrs),
        "lr_decay": probe.decay(),
        "features": "random crops and flips" if probe.augmented else "cached, no augmentation",
        "seed": options.seed,
    }  # fmt: skip
    also = {"best_epoch_accuracy": max(float(accuracy) for accuracy in history)}
    if len(train.classes) > 5:
        also["top5"] = float(linear_accuracy(weight, bias, test, top=5))
    score = Score("linear", float(history[-1]), constants=constants, also=also)
    return score.on(data, train=(train, source.rows()), test=(test_images, test.rows))


def linear_probe(options: LinearOptions) -> LinearProbe:
    """The setting's constants, with what the options change."""
    probe = SETTINGS[options.setting]
    return replace(
        probe,
        lrs=options.lr or probe.lrs,
        batch=options.batch or probe.batch,
        epochs=options.epochs,
        milestones=() if options.schedule == "cosine" else probe.milestones,
    )


class TrainingFeatures:
    """Features of the training images, computed once or of new random crops in every epoch, and training on them."""

    def __init__(self, encoder: LoadedEncoder, images: Images, probe: LinearProbe, seed: int) -> None:
        self.encoder, self.images, self.probe, self.seed = encoder, images, probe, seed
        self.cached = None if probe.augmented else extract(encoder, images, "train features")
        self.seen = torch.zeros(len(images), dtype=torch.bool)

    def train(
        self, lrs: tuple[float, ...], rows: Tensor | None = None, test: Features | None = None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Train linear layers, one per learning rate, on some rows of the images or on all."""
        g = generator(self.seed, "linear")
        probe = replace(self.probe, lrs=lrs)
        if self.cached is not None:
            features = self.cached if rows is None else self.cached.among(rows)
            batches = cached_batches(features, probe.batch, g)
        else:
            images = self.images if rows is None else self.images.select(rows)
            seen = self.seen if rows is None else None
            batches = augmented_batches(self.encoder, images, probe.batch, self.seed, seen)
        return train_linear(batches, self.encoder.dim, len(self.images.classes), probe, g, test)

    def at(self, rows: Tensor) -> Features:
        """Features of some of the images, without augmentation."""
        if self.cached is not None:
            return self.cached.among(rows)
        return extract(self.encoder, self.images.select(rows), "validation features")

    def rows(self) -> Tensor:
        """Rows of the images that could be read."""
        return self.seen.nonzero().squeeze(1) if self.cached is None else self.cached.rows


def choose_lr(source: TrainingFeatures, data: Data) -> tuple[float, str]:
    """The learning rate that is best on validation images, and which images those are, in words."""
    if data.held_out is None:
        fit, held_out = validation_split(data.train)
        validation = source.at(held_out)
    else:
        fit, validation = None, extract(source.encoder, data.held_out, "validation features")
    if not len(validation.h):
        raise RequestError(f"none of the validation images of {data.name} can be decoded; give one --lr")
    lrs = source.probe.lrs
    weight, bias, _ = source.train(lrs, fit)
    lr = lrs[int(linear_accuracy(weight, bias, validation).argmax())]
    return lr, f"validation ({len(validation.h)} images{' of train' if data.held_out is None else ''})"


# ---------------------------------------------------------------------------------------------------------------
# Training

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
    loader = crop_loader(encoder, images, batch, seed)
    assert images.labels is not None
    labels = images.labels

    def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
        for views in loader.epoch(number):
            if seen is not None:
                seen[views.index] = True
            yield encoder.encoder(views.pixels["large"][0]).float().cpu(), labels[views.index]

    return epoch


def train_linear(
    batches: Batches, dim: int, classes: int, probe: LinearProbe, g: torch.Generator, test: Features | None = None
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Train one linear layer per learning rate by SGD: weights L×D×classes, biases L×1×classes, accuracy per epoch.

    `test`, if given, only serves to report the best epoch beside the last one.
    """
    weight, bias = initial_layers(dim, classes, probe, g)
    v_weight, v_bias = torch.zeros_like(weight), torch.zeros_like(bias)
    base = torch.tensor(probe.lrs).view(-1, 1, 1)
    history = []
    with torch.inference_mode(), progress_bar("linear probe, epochs", probe.epochs) as advance:
        for epoch in range(probe.epochs):
            lr = base * probe.rate(epoch / probe.epochs)
            for x, y in batches(epoch):
                # The gradient of mean cross-entropy is xᵀ(softmax − onehot)/B, for all learning rates at once.
                error = (x @ weight + bias).softmax(-1)  # L×B×classes
                error[:, torch.arange(len(y)), y] -= 1
                error /= len(y)
                v_weight.mul_(MOMENTUM).add_(x.T @ error).add_(weight, alpha=probe.weight_decay)
                v_bias.mul_(MOMENTUM).add_(error.sum(1, keepdim=True)).add_(bias, alpha=probe.weight_decay)
                weight -= lr * v_weight
                bias -= lr * v_bias
            if test is not None:
                history.append(linear_accuracy(weight, bias, test))
            advance(1)
    return weight, bias, history


def initial_layers(dim: int, classes: int, probe: LinearProbe, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """The same initial weights D×classes and biases 1×classes for each learning rate."""
    bound = dim**-0.5  # torch's own initialization of a linear layer
    weight = (torch.rand(1, dim, classes, generator=g) * 2 - 1).mul(bound)
    bias = (torch.rand(1, 1, classes, generator=g) * 2 - 1).mul(bound)
    if probe.init_std:
        weight = torch.randn(1, dim, classes, generator=g) * probe.init_std
        bias = torch.zeros(1, 1, classes)
    return weight.repeat(len(probe.lrs), 1, 1), bias.repeat(len(probe.lrs), 1, 1)


def linear_accuracy(weight: Tensor, bias: Tensor, test: Features, top: int = 1) -> Tensor:
    """Percent of images whose class is among the `top` highest logits, one per learning rate."""
    assert test.labels is not None
    right = [
        ((x @ weight + bias).topk(top).indices == y[:, None]).any(-1).sum(1)
        for x, y in zip(test.h.split(5000), test.labels.split(5000), strict=True)
    ]
    return 100 * torch.stack(right).sum(0) / len(test.h)


PROTOCOL = EvaluationProtocol("linear", LinearOptions, evaluate_linear)
