"""How well an image's rotation can be predicted from h = f(x) and z = g(f(x))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.data import Data, Images
from effssl.evaluation.probing import probe_score, probed_features, unlabelled_test_images
from effssl.evaluation.protocol import BatchSize, EvaluationProtocol, LearningRate
from effssl.evaluation.score import Score
from effssl.features.extract import extract
from effssl.network.heads import mlp
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.progress import progress_bar
from effssl.runtime.randomness import generator, seeded
from effssl.schedules import cosine
from effssl.schema import Positive, Seed

TURNS = 4
MOMENTUM = 0.9


@dataclass(frozen=True)
class RotationProbeOptions:
    """Options of the rotation probe."""

    on: Literal["both", "h", "z"] = "both"
    """which features the probe reads"""
    hidden: Positive = 512
    """hidden units of the MLP"""
    epochs: Positive = 50
    batch: BatchSize = 512
    lr: LearningRate = 0.1
    seed: Seed = 0


def evaluate_probe_rotation(encoder: LoadedEncoder, data: Data, options: RotationProbeOptions) -> Score:
    """Accuracy of a small MLP that predicts an image's rotation, over all four rotations of every test image."""
    test = unlabelled_test_images(data, "the rotation probe")
    accuracy = {}
    for on in probed_features(encoder, options.on):
        train_x, train_rows = rotated_features(encoder, data.train, f"train {on}", on)
        test_x, test_rows = rotated_features(encoder, test, f"test {on}", on)
        accuracy[on] = rotation_accuracy(train_x, test_x, options)
    constants = {
        "probe": f"MLP with {options.hidden} hidden units and batch norm", "optimizer": "SGD", "momentum": MOMENTUM,
        "lr": options.lr, "lr_decay": "cosine to 0", "weight_decay": 0.0, "epochs": options.epochs,
        "batch": options.batch, "train": "one random rotation per image and epoch, no augmentation",
        "test": "all four rotations", "chance": 100 / TURNS, "seed": options.seed,
    }  # fmt: skip
    score = probe_score("probe-rotation", accuracy, constants)
    return score.on(data, train=(data.train, train_rows), test=(test, test_rows))


def rotated_features(encoder: LoadedEncoder, images: Images, text: str, on: str) -> tuple[Tensor, Tensor]:
    """Features at all four rotations, 4×N×D, and the rows of the images that could be read."""
    parts = [extract(encoder, images, f"{text} at {90 * turns}°", turns, on) for turns in range(TURNS)]
    return torch.stack([part.h for part in parts]), parts[0].rows


def rotation_accuracy(train: Tensor, test: Tensor, options: RotationProbeOptions) -> float:
    """Train the MLP on features of all rotations (4×N×D), one rotation per image and epoch; percent right on test."""
    _, count, dim = train.shape
    with seeded(options.seed, "rotation probe"):
        head = mlp([dim, options.hidden, TURNS])
    g = generator(options.seed, "rotation probe")
    optimizer = torch.optim.SGD(head.parameters(), options.lr, momentum=MOMENTUM)
    steps, step = options.epochs * -(-count // options.batch), 0
    with progress_bar("rotation probe, epochs", options.epochs) as advance:
        for _ in range(options.epochs):
            turns = torch.randint(TURNS, (count,), generator=g)
            for rows in torch.randperm(count, generator=g).split(options.batch):
                optimizer.param_groups[0]["lr"] = options.lr * cosine(step / steps)
                step += 1
                if len(rows) == 1:
                    continue  # batch norm cannot normalize a single row
                loss = F.cross_entropy(head(train[turns[rows], rows]), turns[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            advance(1)
    head.eval()
    with torch.inference_mode():
        right = [(head(part).argmax(1) == k).float().mean() for k, part in enumerate(test)]
    return 100 * float(torch.stack(right).mean())


PROTOCOL = EvaluationProtocol("probe-rotation", RotationProbeOptions, evaluate_probe_rotation, needs_projector=True)
