"""Fine-tuning: a copy of the encoder and a new linear layer, trained together on labelled images."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effssl.data import Images
from effssl.evaluation.crops import crop_loader
from effssl.features.extract import extract
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RunFailed
from effssl.runtime.progress import progress_bar
from effssl.runtime.randomness import seed_of, seeded
from effssl.schedules import step_decay

MILESTONES, FACTOR = (0.6, 0.8), 0.2  # epochs 12 and 16 of 20
MOMENTUM = 0.9


@dataclass(frozen=True)
class FineTuning:
    """Length, learning rates and seed of a fine-tuning."""

    epochs: int
    batch: int
    lr: float  # of the encoder
    head_lr: float  # of the linear layer
    seed: int

    def constants(self) -> dict[str, Any]:
        """All that was fixed, for a score."""
        epochs = ", ".join(str(round(milestone * self.epochs)) for milestone in MILESTONES)
        return {
            "epochs": self.epochs, "batch": self.batch, "optimizer": "SGD", "momentum": MOMENTUM, "weight_decay": 0.0,
            "lr": self.lr, "head_lr": self.head_lr, "lr_decay": f"x{FACTOR} at {epochs}", "batch_norm": "trained",
            "augmentation": "random crops and flips", "seed": self.seed,
        }  # fmt: skip


@dataclass(frozen=True)
class FineTuned:
    """Accuracy after fine-tuning, in percent, and the rows of the images that could be read."""

    top1: float
    also: dict[str, float]  # top5, where there are more than five classes
    train_rows: Tensor
    test_rows: Tensor


def fine_tune(encoder: LoadedEncoder, train: Images, test: Images, settings: FineTuning) -> FineTuned:
    """Train a copy of the encoder (batch norm too) and a new linear layer; top-1 and top-5 on test."""
    encoder = encoder.without_whitening()  # a whitening of the old features does not fit the new ones
    tuned, classes = copy.deepcopy(encoder), len(train.classes)
    with seeded(settings.seed, "fine-tuning"):
        head = nn.Linear(encoder.dim, classes).to(encoder.device)
    assert train.labels is not None
    train_rows = train_with_layer(tuned, head, train, train.labels, settings)
    features = extract(tuned, test, "test features")
    assert features.labels is not None
    with torch.inference_mode():
        predicted = head(features.h.to(encoder.device)).cpu().topk(min(5, classes)).indices
    right = predicted == features.labels[:, None]
    top1, top5 = (100 * float(part.float().mean()) for part in (right[:, 0], right.any(1)))
    return FineTuned(top1, {"top5": top5} if classes > 5 else {}, train_rows, features.rows)


def train_with_layer(
    tuned: LoadedEncoder, head: nn.Module, images: Images, targets: Tensor, settings: FineTuning, workers: int = -1
) -> Tensor:
    """Train an encoder (batch norm too) and the layer on it in place; rows of the images that could be read."""
    tuned.encoder.requires_grad_(True).train()
    groups = [
        {"params": list(tuned.encoder.parameters()), "lr": settings.lr},
        {"params": list(head.parameters()), "lr": settings.head_lr},
    ]
    optimizer = torch.optim.SGD(groups, settings.lr, momentum=MOMENTUM)
    loader = crop_loader(tuned, images, settings.batch, settings.seed, workers)
    seen = torch.zeros(len(images), dtype=torch.bool)
    forked = [tuned.device] if tuned.device.type == "cuda" else []
    with torch.random.fork_rng(forked), progress_bar("fine-tuning, steps", settings.epochs * loader.steps) as advance:
        for epoch in range(settings.epochs):
            decay = step_decay(epoch / settings.epochs, MILESTONES, FACTOR)
            for group, lr in zip(optimizer.param_groups, (settings.lr, settings.head_lr), strict=True):
                group["lr"] = lr * decay
            total = torch.zeros((), device=tuned.device)
            for views in loader.epoch(epoch):
                seen[views.index] = True
                advance(1)
                if len(views.index) == 1:
                    continue  # batch norm cannot normalize a single image
                # Dropout draws from the global generator.
                torch.manual_seed(seed_of(settings.seed, "fine-tuning", views.step))
                labels = targets[views.index].to(tuned.device, non_blocking=True)
                loss = F.cross_entropy(head(tuned.encoder(views.pixels["large"][0])), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach()
            if not math.isfinite(float(total)):
                raise RunFailed(f"the loss is not finite in epoch {epoch + 1}; lower --lr or --head-lr")
    tuned.encoder.requires_grad_(False).eval()
    return seen.nonzero().squeeze(1)
