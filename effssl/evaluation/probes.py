"""What a representation still knows: the rotation of an image, and which two views belong together."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.config import Augment, build
from effssl.data import Data, Images
from effssl.data.loader import ViewLoader
from effssl.data.views import Needs
from effssl.evaluation.options import ProbeContrastive, ProbeRotation
from effssl.evaluation.score import Score
from effssl.features.extract import extract
from effssl.network.heads import mlp
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import counter
from effssl.runtime.randomness import generator, seeded

TURNS = 4


def spaces(encoder: LoadedEncoder, on: str) -> list[str]:
    """Where to probe: h and, where the run kept its projector, z."""
    if on == "both":
        return ["h", "z"] if encoder.projector is not None else ["h"]
    if on == "z" and encoder.projector is None:
        raise RequestError("this encoder has no projector; z is known for run folders only (use --on h)")
    return [on]


def test_images(data: Data, what: str) -> Images:
    """The images a probe is read on; labels are not needed."""
    if data.test is None:
        raise RequestError(f"{data.name} has no test images, which {what} needs; put them in train/ and test/")
    return data.test


# ---------------------------------------------------------------------------------------------------------------
# Rotation


def evaluate_probe_rotation(encoder: LoadedEncoder, data: Data, options: ProbeRotation) -> Score:
    """Accuracy of a small MLP that tells by how much an image was rotated, over all four turns of every test image."""
    test = test_images(data, "the rotation probe")
    accuracy = {}
    for space in spaces(encoder, options.on):
        train_x, train_rows = all_turns(encoder, data.train, f"train {space}", space)
        test_x, test_rows = all_turns(encoder, test, f"test {space}", space)
        accuracy[space] = rotation_accuracy(train_x, test_x, options)
    constants = {
        "probe": f"MLP with {options.hidden} hidden units and batch norm", "optimizer": "SGD", "momentum": 0.9,
        "lr": options.lr, "lr_decay": "cosine to 0", "weight_decay": 0.0, "epochs": options.epochs,
        "batch": options.batch, "train": "one random turn per image and epoch, no augmentation",
        "test": "all four turns", "chance": 25.0, "seed": options.seed,
    }  # fmt: skip
    first, *rest = accuracy
    score = Score(
        "probe-rotation", accuracy[first], f"accuracy on {first}", constants, {f"on_{s}": accuracy[s] for s in rest}
    )
    return score.on(data, train=(data.train, train_rows), test=(test, test_rows))


def all_turns(encoder: LoadedEncoder, images: Images, text: str, space: str) -> tuple[Tensor, Tensor]:
    """Features of all four turns, 4×N×D, and the rows of the images they belong to."""
    parts = [extract(encoder, images, f"{text} at {90 * k}°", k, space) for k in range(TURNS)]
    return torch.stack([part.h for part in parts]), parts[0].rows


def rotation_accuracy(train: Tensor, test: Tensor, options: ProbeRotation) -> float:
    """Train the MLP on features of all four turns (4×N×D), one turn per image and epoch; percent right on test."""
    _, count, dim = train.shape
    with seeded(options.seed, "rotation probe"):
        head = mlp([dim, options.hidden, TURNS])
    g = generator(options.seed, "rotation probe")
    optimizer = torch.optim.SGD(head.parameters(), options.lr, momentum=0.9)
    steps = options.epochs * -(-count // options.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with counter("rotation probe, epochs", options.epochs) as advance:
        for _ in range(options.epochs):
            turns = torch.randint(TURNS, (count,), generator=g)
            for rows in torch.randperm(count, generator=g).split(options.batch):
                if len(rows) > 1:  # batch norm cannot normalize a single row
                    loss = F.cross_entropy(head(train[turns[rows], rows]), turns[rows])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                schedule.step()
            advance(1)
    head.eval()
    with torch.inference_mode():
        right = [(head(part).argmax(1) == k).float().mean() for k, part in enumerate(test)]
    return 100 * float(torch.stack(right).mean())


# ---------------------------------------------------------------------------------------------------------------
# Contrastive


def evaluate_probe_contrastive(encoder: LoadedEncoder, data: Data, options: ProbeContrastive) -> Score:
    """How often a view's most similar one among the other 2B − 1 of its batch is the other view of its image."""
    test = test_images(data, "the contrastive probe")
    if len(test) < options.batch:
        raise RequestError(
            f"a batch of {options.batch} images is larger than the {len(test)} test images; chance depends on it: "
            f"choose --batch {len(test)} or less, the same for all encoders you compare"
        )
    augment = training_augment(encoder)
    loader = ViewLoader(test, augment, Needs(large=2), options.batch, encoder.size, options.seed, encoder.device)
    found = spaces(encoder, options.on)
    right: dict[str, list[Tensor]] = {space: [] for space in found}
    unread = torch.zeros(len(test), dtype=torch.bool)
    unread[loader.order(0)[: loader.steps * options.batch]] = True
    with torch.inference_mode(), counter("contrastive probe, batches", loader.steps) as advance:
        for views in loader.epoch(0):
            unread[views.index] = False
            h = torch.cat([encoder.encoder(view) for view in views.large])
            for space in found:
                right[space].append(partner_found((encoder.project(h) if space == "z" else h).float()))
            advance(1)
    accuracy = {space: 100 * float(torch.cat(parts).float().mean()) for space, parts in right.items()}
    constants = {
        "batch": options.batch, "batches": loader.steps, "images_left_out": len(test) - loader.steps * options.batch,
        "chance": 100 / (2 * options.batch - 1), "similarity": "cosine", "seed": options.seed,
        "augmentation": {f.name: getattr(augment, f.name) for f in dataclasses.fields(augment)},
    }  # fmt: skip
    first, *rest = accuracy
    score = Score(
        "probe-contrastive", accuracy[first], f"accuracy on {first}", constants, {f"on_{s}": accuracy[s] for s in rest}
    )
    return score.on(data, test=(test, (~unread).nonzero().squeeze(1)))


def partner_found(features: Tensor) -> Tensor:
    """For 2B views, first all first ones: is the most similar other view the partner? 2B booleans."""
    z, n = F.normalize(features, dim=1), len(features)
    similarity = (z @ z.T).fill_diagonal_(-2)
    return similarity.argmax(1) == torch.arange(n, device=z.device).roll(n // 2)


def training_augment(encoder: LoadedEncoder) -> Augment:
    """The views the encoder was trained on; SimCLR's usual ones where that is not known."""
    known = encoder.about.get("augment")
    augment = build(Augment, known, "the run's augmentation") if known else Augment()
    return dataclasses.replace(
        augment, mean=tuple(encoder.about["mean"]), std=tuple(encoder.about["std"]), saliency="", rotate=False
    )
