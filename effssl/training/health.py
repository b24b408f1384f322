"""Is the representation learning or collapsing? Evaluated every few epochs, said in plain words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effssl.data.images import Images
from effssl.features.extract import Features, run_over
from effssl.features.knn import knn_accuracy
from effssl.features.whitening import ReadoutFitter, first_images, patch_encoder
from effssl.network.encoders import Encoder, build_encoder
from effssl.network.loaded import LoadedEncoder
from effssl.network.network import Network
from effssl.network.options import PIXELS
from effssl.network.patches import SIDE
from effssl.runtime.distribution import gather_uneven, rank, world_size
from effssl.runtime.errors import RunFailed
from effssl.training.metadata import encoder_metadata
from effssl.training.trainer import Trainer

# A spread of 1 is that of directions drawn at random, 0 is one point. An untrained network gives similar images similar
# projections (0.2 to 0.3); learning spreads them out (0.7 and more), collapse draws them together.
COLLAPSED_SPREAD, COLLAPSED_SHARE, COLLAPSED_RANK = 0.05, 0.5, 1.5
SAMPLE = 2000  # features that spread and rank are measured on: enough to be stable, and their cost stays small
MIN_IMAGES = 10  # with fewer images even a healthy network shows hardly any direction
UNLABELLED = 1000  # images that are evaluated where there are no labels
LEARNED = 0.2  # of the way from chance to perfect, at which a task counts as learned
BASELINE_PATCHES = "patches-100"  # enough for a yardstick, and quick
UNTRAINED = "the untrained network"
GAIN = 1.0  # points of kNN accuracy over the untrained network that count as learning


@dataclass(frozen=True)
class Representation:
    """One evaluation of the representation."""

    std_h: float  # spread of normalized features, 1 = all directions alike, 0 = one point
    std_z: float
    rank_h: float  # effective number of directions in use
    rank_z: float
    knn: float | None = None  # percent on the validation split, where labels exist
    sampled: int = 1000  # images that were evaluated


@dataclass(frozen=True)
class TaskAccuracy:
    """How well a task is solved, and what guessing would reach; both between 0 and 1."""

    name: str
    accuracy: float
    chance: float

    @property
    def learned_from(self) -> float:
        """Accuracy from which the task counts as learned."""
        return self.chance + LEARNED * (1 - self.chance)


def spread(features: Tensor) -> float:
    """Standard deviation of L2-normalized features per dimension, times √dim."""
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
        # Without labels there is nothing to vote on, and only the spread of some images is measured.
        self.bank = first_images(fit, config.health.bank if labelled else 0)
        self.queries = first_images(validation, config.health.queries if labelled else UNLABELLED)
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
            first = "the starting weights" if self.trainer.config.start_from else UNTRAINED
            word, why = verdict([Representation(**one) for one in evaluations], task_accuracies(line), first)
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
            encoder = self.finished(network.encoder)  # without labels too, so that a budget knows its time
            knn = None
            if self.queries.labels is not None and len(self.bank):
                queries = self._features(encoder, self.queries) if encoder is not network.encoder else queries
                knn = knn_accuracy(self._features(encoder, self.bank), queries)
        return Representation(spread(h), spread(z), effective_rank(h), effective_rank(z), knn, len(h))

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
        """kNN accuracy of what costs nothing, on the same images: pixels and k-means patches; none without labels."""
        if self.queries.labels is None or not len(self.bank):
            return {}
        pixels = LoadedEncoder(
            build_encoder("pixels", PIXELS, channels=len(self.about["mean"])), self.about | {"image_size": PIXELS}
        )
        encoders = {"pixels": pixels}
        if self.about["image_size"] >= SIDE:
            encoders["patches"] = patch_encoder(self.bank, LoadedEncoder(pixels.encoder, self.about), BASELINE_PATCHES)
        found = {}
        for name, encoder in encoders.items():
            bank, queries = self._features(encoder, self.bank), self._features(encoder, self.queries)
            found[f"baseline/{name}"] = round(knn_accuracy(bank, queries), 4)
        return found

    def _features(self, encoder: Encoder | LoadedEncoder, images: Images) -> Features:
        """Features of all images; of several processes each takes its part."""
        loaded = encoder if isinstance(encoder, LoadedEncoder) else LoadedEncoder(encoder, self.about)
        mine = torch.arange(len(images)).tensor_split(world_size())[rank()]
        part = run_over(loaded, images if world_size() == 1 else images.select(mine), lambda rows: None)
        rows = gather_uneven(mine[part.rows])
        return Features(gather_uneven(part.h), None if images.labels is None else images.labels[rows], rows)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """A block in which a module is in eval mode."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


def task_accuracies(line: Mapping[str, Any]) -> list[TaskAccuracy]:
    """The tasks of a journal's line."""
    names = [key.removeprefix("accuracy/") for key in line if key.startswith("accuracy/")]
    return [TaskAccuracy(name, line[f"accuracy/{name}"], line[f"chance/{name}"]) for name in names]


def verdict(
    evaluations: list[Representation], tasks: list[TaskAccuracy], compared_with: str = UNTRAINED
) -> tuple[str, str]:
    """(learning | collapsing | too early to tell, why), from all evaluations; the first is of the untrained network.

    Or it is of the weights that the run started from; `compared_with` says which.
    """
    first, last = evaluations[0], evaluations[-1]
    if last.sampled < MIN_IMAGES:
        return "too early to tell", f"{last.sampled} validation images are too few"
    collapse = collapsed(first, last)
    if collapse:
        return "collapsing", collapse
    if len(evaluations) < 2:
        return "too early to tell", "the network is untrained"
    if last.knn is not None and first.knn is not None:
        return by_knn(evaluations, last.knn, f"{last.knn - first.knn:+.1f} over {compared_with}")
    return by_tasks(first, last, tasks)


def collapsed(first: Representation, last: Representation) -> str:
    """Why the representation counts as collapsed; empty if it does not."""
    if min(last.std_h, last.std_z) < COLLAPSED_SPREAD:
        which = "features" if last.std_h < COLLAPSED_SPREAD else "projections"
        return f"all images get nearly the same {which} (spread {min(last.std_h, last.std_z):.3f} of 1)"
    if min(last.rank_h, last.rank_z) < COLLAPSED_RANK:
        return f"features vary along {min(last.rank_h, last.rank_z):.1f} directions only"
    if last.std_z < COLLAPSED_SHARE * first.std_z:
        return f"the spread of the projections fell from {first.std_z:.2f} to {last.std_z:.2f} of 1"
    return ""


def by_knn(evaluations: list[Representation], knn: float, over: str) -> tuple[str, str]:
    """The verdict where labels exist; `over` says how much better than at first."""
    first, last = evaluations[0], evaluations[-1]
    gain = knn - (first.knn or 0.0)
    if gain >= GAIN:
        return "learning", f"kNN {knn:.1f} %, {over}; spread {last.std_h:.2f}"
    if len(evaluations) > 3 and last.rank_h < first.rank_h / 2:
        fell = f"directions in use fell from {first.rank_h:.0f} to {last.rank_h:.0f}"
        return "collapsing", f"kNN {knn:.1f} % ({gain:+.1f}), {fell}"
    return "too early to tell", f"kNN {knn:.1f} %, {over}"


def by_tasks(first: Representation, last: Representation, tasks: list[TaskAccuracy]) -> tuple[str, str]:
    """The verdict without labels: by the tasks, or by the directions in use where there is none."""
    texts = [f"{t.name} accuracy {100 * t.accuracy:.0f} % (chance {100 * t.chance:.0f} %)" for t in tasks]
    learned = [text for task, text in zip(tasks, texts, strict=True) if task.accuracy > task.learned_from]
    if learned:
        return "learning", f"{', '.join(learned)}, spread {last.std_h:.2f}"
    if not tasks and last.rank_h > 1.2 * first.rank_h and last.std_h > 1.1 * first.std_h:
        grew = f"directions in use grew from {first.rank_h:.0f} to {last.rank_h:.0f}"
        return "learning", f"{grew}, spread {last.std_h:.2f}"
    needed = [f"{text}, learning from {100 * t.learned_from:.0f} %; " for t, text in zip(tasks, texts, strict=True)]
    healthy = f"no collapse (spread {last.std_h:.2f}, rank {last.rank_h:.0f})"
    return "too early to tell", f"no labels; {''.join(needed)}{healthy}"
