"""The representation while it is trained: evaluated every few epochs, always on the same images."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effssl.data.images import Images, Reading
from effssl.features.agreement import MOST, agreement, chance_agreement, image_pairs
from effssl.features.extract import Features, run_over
from effssl.features.knn import knn_accuracy
from effssl.features.whitening import ReadoutFitter, first_images, patch_encoder, untrained_encoder
from effssl.network.encoders import Encoder, build_encoder
from effssl.network.loaded import LoadedEncoder, pixels_of
from effssl.network.network import Network
from effssl.network.options import PATCH_DIM, PIXELS
from effssl.network.patches import SIDE
from effssl.recipes.budgets import parse_budget
from effssl.runtime.distribution import gather_uneven, rank, world_size
from effssl.runtime.errors import RunFailed
from effssl.training.metadata import encoder_metadata
from effssl.training.trainer import Trainer
from effssl.training.verdict import (
    STARTING,
    UNTRAINED,
    Moment,
    Reference,
    Representation,
    task_accuracies,
    verdict,
)

SAMPLE = 2000  # features that spread and rank are measured on: enough to be stable, and their cost stays small
FEW_DIM = 256  # features of k-means patches that are fitted on the images of `image_pairs`: so many hold no more
PER_SECOND = 3  # photographs of a run without labels that are evaluated, per second of a time budget
FEWEST = 200  # of them, however short the time is
BASELINE_PATCHES = "patches-100"  # enough for a yardstick, and quick


def spread(features: Tensor) -> float:
    """Standard deviation of L2-normalized features per dimension, times √dim; of a single image it is not defined."""
    if len(features) < 2:
        return math.nan
    unit = F.normalize(features.double(), dim=1)
    return float(unit.std(0).mean() * unit.shape[1] ** 0.5)


def effective_rank(features: Tensor) -> float:
    """exp of the entropy of the centered features' singular values (Roy & Vetterli 2007)."""
    unit = F.normalize(features.double(), dim=1)
    values = torch.linalg.svdvals(unit - unit.mean(0))
    share = values / values.sum().clamp(min=1e-300)
    return float(torch.exp(-(share * share.clamp(min=1e-300).log()).sum())) if values.sum() > 1e-9 else 1.0


class Monitor:
    """Evaluates the network from time to time, always on the same images, and compares with the untrained network."""

    def __init__(self, trainer: Trainer) -> None:
        config, data = trainer.config, trainer.data
        self.trainer = trainer
        self.every = config.health.every or max(1, config.epochs // 10)  # epochs between two evaluations
        self.about = encoder_metadata(config)
        labelled = data.train.labels is not None
        fit, validation = data.validation() if labelled else (data.train, data.train)
        self.bank = first_images(fit, config.health.bank if labelled else 0)
        most = affordable(config.budget) if config.budget and not fit.in_memory else MOST
        reading = Reading(trainer.device, pixels=pixels_of(self.about))
        self.pairs = None if labelled else image_pairs(fit, config.image_size, most, reading)
        self.queries = first_images(validation, config.health.queries) if self.pairs is None else self.pairs.plain
        self._last: tuple[int, Encoder | None] = (0, None)  # finished encoder, after so many updates
        self.readouts: ReadoutFitter | None = None
        if config.whiten == "on":
            self.readouts = ReadoutFitter(fit, config.readout, self.about, config.seed)
            self.readouts.prepare()  # once, so that a budget does not take it for a part of every evaluation

    def evaluate(self, line: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Figures of the representation; after training, with the line of the epoch, a verdict too."""
        started = time.perf_counter()
        with self.trainer.averaged():
            found = self.measure(self.trainer.objective.network)
        evaluations = self.trainer.record_evaluation(asdict(found), time.perf_counter() - started)
        figures: dict[str, Any] = {k: round(v, 4) for k, v in asdict(found).items() if v is not None}
        if line is not None:
            at = self.trainer.position
            if not at.baselines:
                figures |= self.baselines()
            reference = Reference(STARTING if self.trainer.config.start_from else UNTRAINED, at.baselines)
            moment = Moment(self.trainer.steps_done / max(1, self.trainer.clock.total_steps), at.updates)
            known = [Representation(**one) for one in evaluations]
            word, why = verdict(known, task_accuracies(line), reference, moment)
            figures |= {"verdict": word, "why": why}
        return figures

    @torch.no_grad()
    def measure(self, network: Network) -> Representation:
        """Measure without disturbing: eval mode, no gradient, and back to what it was."""
        with evaluating(network):
            queries = self._features(network.encoder, self.queries)
            h = queries.h[:SAMPLE]
            z = network.g(h.to(network.encoder.device)).float().cpu()
            if not (torch.isfinite(h).all() and torch.isfinite(z).all()):
                raise RunFailed("the network's features are not finite; try a smaller --lr or a longer warm-up")
            encoder = self.finished(network.encoder)
            found = self.score(encoder, queries if encoder is network.encoder else None)
        measured = Representation(spread(h), spread(z), effective_rank(h), effective_rank(z), sampled=len(h))
        return replace(measured, knn=found.get("knn"), agreement=found.get("agreement"))

    def score(self, encoder: Encoder | LoadedEncoder, queries: Features | None = None) -> dict[str, float]:
        """What is compared with baselines, by its name: kNN accuracy, or agreement of neighbors without labels."""
        queries = self._features(encoder, self.queries) if queries is None else queries
        if self.pairs is not None:
            return {"agreement": agreement(queries.h, self._features(encoder, self.pairs.changed).h)}
        return {"knn": knn_accuracy(self._features(encoder, self.bank), queries)} if len(self.bank) else {}

    def finished(self, encoder: Encoder) -> Encoder:
        """The encoder as a finished run has it: with its readout, if it is to have one."""
        if self.readouts is None:
            return encoder
        at, finished = self._last
        if finished is None or at != self.trainer.position.updates:
            with evaluating(encoder):
                finished = self.readouts.fit(encoder)
            self._last = (self.trainer.position.updates, finished)
        return finished

    @torch.no_grad()
    def baselines(self) -> dict[str, float]:
        """The same measure, on the same images, of what costs nothing: pixels, k-means patches, guessing.

        Where a run starts from trained weights, of the untrained network too. Empty where nothing can be measured.
        """
        if self.pairs is None and not len(self.bank):
            return {}
        encoders = self.free_encoders()
        found = {name: score for name, one in encoders.items() for score in self.score(one).values()}
        found["chance"] = self.chance()
        self.trainer.record_baselines(found)
        return {f"baseline/{name}": round(value, 4) for name, value in found.items()}

    def free_encoders(self) -> dict[str, LoadedEncoder]:
        """Encoders that need no training, by name."""
        plain = build_encoder("pixels", PIXELS, channels=len(self.about["mean"]))
        pixels = LoadedEncoder(plain, self.about | {"image_size": PIXELS})
        like = LoadedEncoder(pixels.encoder, self.about)
        images, dim = (self.bank, PATCH_DIM) if self.pairs is None else (self.pairs.plain, FEW_DIM)
        encoders = {"pixels": pixels}
        if self.about["image_size"] >= SIDE:
            encoders["patches"] = patch_encoder(images, like, BASELINE_PATCHES, dim=dim)
        if self.trainer.config.start_from:
            encoders["untrained"] = untrained_encoder(images, like)
        return encoders

    def chance(self) -> float:
        """The score of guessing, in percent: the most frequent class, or neighbors drawn at random."""
        if self.queries.labels is None:
            return chance_agreement(len(self.queries))
        return 100 * float(self.queries.labels.bincount().max()) / len(self.queries)

    def _features(self, encoder: Encoder | LoadedEncoder, images: Images) -> Features:
        """Features of all images; of several processes each takes its part."""
        loaded = encoder if isinstance(encoder, LoadedEncoder) else LoadedEncoder(encoder, self.about)
        mine = torch.arange(len(images)).tensor_split(world_size())[rank()]
        part = run_over(loaded, images if world_size() == 1 else images.select(mine), lambda rows: None)
        rows = gather_uneven(mine[part.rows])
        return Features(gather_uneven(part.h), None if images.labels is None else images.labels[rows], rows)


def affordable(budget: str) -> int:
    """How many photographs a run with a time budget evaluates: decoding them takes a small share of the time.

    >>> affordable("30s"), affordable("5m"), affordable("8h")
    (200, 900, 1000)
    """
    return min(MOST, max(FEWEST, round(PER_SECOND * parse_budget(budget))))


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """A block in which a module is in eval mode."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)
