"""Is the representation learning or collapsing? Looked at every few epochs, said in plain words."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.config import Health as Settings
from effssl.data import Data, Images
from effssl.features.extract import Features, run_over
from effssl.features.knn import knn_accuracy
from effssl.network.loaded import LoadedEncoder
from effssl.network.network import Network
from effssl.runtime.distribution import gather_uneven, rank, world
from effssl.runtime.errors import RunFailed
from effssl.runtime.randomness import generator

# A spread of 1 is that of directions drawn at random, 0 is one point. An untrained network gives similar images similar
# projections (0.2 to 0.3); learning spreads them out (0.7 and more), collapse draws them together.
COLLAPSED_SPREAD, COLLAPSED_SHARE, COLLAPSED_RANK = 0.05, 0.5, 1.5
SAMPLE = 2000  # features that spread and rank are measured on: enough to be stable, and their cost stays small
FEWEST = 10  # with fewer images even a healthy network shows hardly any direction
UNLABELLED = 1000  # images that are looked at where there are no labels
TOLD = 0.2  # of the way from chance to perfect, at which a rotation task counts as learned
GAIN = 1.0  # points of kNN accuracy over the untrained network that count as learning


@dataclass(frozen=True)
class Look:
    """One look at the representation."""

    std_h: float  # spread of normalized features, 1 = all directions alike, 0 = one point
    std_z: float
    rank_h: float  # effective number of directions in use
    rank_z: float
    knn: float | None = None  # percent on the validation split, where labels exist
    sampled: int = 1000  # images that were looked at


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
    """Looks at the network from time to time, always at the same images, and compares with the untrained network."""

    def __init__(self, settings: Settings, data: Data, about: dict) -> None:
        self.about = about
        fit, validation = data.validation() if data.train.labels is not None else (data.train, data.train)
        # Without labels there is nothing to vote on, and only the spread of some images is looked at.
        self.bank = _some(fit, settings.bank if data.train.labels is not None else 0)
        self.queries = _some(validation, settings.queries if data.train.labels is not None else UNLABELLED)

    @torch.no_grad()
    def look(self, network: Network) -> Look:
        """Measure without disturbing: eval mode, no gradient, and back to what it was."""
        was_training = network.training
        network.eval()
        try:
            queries = self._features(network, self.queries)
            device = next(network.parameters()).device
            h = queries.h[:SAMPLE]
            z = network.g(h.to(device)).float().cpu()
            if not (torch.isfinite(h).all() and torch.isfinite(z).all()):
                raise RunFailed("the network's features are not finite; try a smaller --lr or a longer warm-up")
            knn = None
            if queries.labels is not None and len(self.bank):
                knn = knn_accuracy(self._features(network, self.bank), queries)
        finally:
            network.train(was_training)
        return Look(spread(h), spread(z), effective_rank(h), effective_rank(z), knn, len(h))

    def _features(self, network: Network, images: Images) -> Features:
        """Features of all images; of several processes each takes its part."""
        encoder = LoadedEncoder(network.encoder, self.about)
        mine = torch.arange(len(images)).tensor_split(world())[rank()]
        part = run_over(encoder, images if world() == 1 else images.select(mine), lambda rows: None)
        rows = gather_uneven(mine[part.rows])
        return Features(gather_uneven(part.h), None if images.labels is None else images.labels[rows], rows)


def _some(images: Images, most: int) -> Images:
    if len(images) <= most:
        return images
    return images.select(torch.randperm(len(images), generator=generator(0, "health"))[:most].sort().values)


def verdict(looks: list[Look], rotation_accuracy: float | None = None, chance: float = 0.25) -> tuple[str, str]:
    """(learning | collapsing | too early to tell, why), from all looks so far; the first is the untrained network."""
    first, last = looks[0], looks[-1]
    if last.sampled < FEWEST:
        return "too early to tell", f"{last.sampled} validation images are too few to tell by"
    if min(last.std_h, last.std_z) < COLLAPSED_SPREAD:
        which = "features" if last.std_h < COLLAPSED_SPREAD else "projections"
        return "collapsing", f"all images get nearly the same {which} (spread {min(last.std_h, last.std_z):.3f} of 1)"
    if min(last.rank_h, last.rank_z) < COLLAPSED_RANK:
        return "collapsing", f"features vary along {min(last.rank_h, last.rank_z):.1f} directions only"
    if last.std_z < COLLAPSED_SHARE * first.std_z:
        shrank = f"from {first.std_z:.2f} to {last.std_z:.2f} of 1"
        return "collapsing", f"projections of different images draw together: their spread fell {shrank}"
    if len(looks) < 2:
        return "too early to tell", "the network is untrained"
    if last.knn is not None and first.knn is not None:
        gain = last.knn - first.knn
        if gain >= GAIN:
            return "learning", f"kNN {last.knn:.1f} %, {gain:+.1f} over the untrained network; spread {last.std_h:.2f}"
        if len(looks) > 3 and last.rank_h < first.rank_h / 2:
            fell = f"directions in use fell from {first.rank_h:.0f} to {last.rank_h:.0f}"
            return "collapsing", f"kNN {last.knn:.1f} % ({gain:+.1f}), {fell}"
        return "too early to tell", f"kNN {last.knn:.1f} %, {gain:+.1f} over the untrained network"
    if rotation_accuracy is not None and rotation_accuracy > chance + TOLD * (1 - chance):
        told = f"rotation accuracy {100 * rotation_accuracy:.0f} % (chance {100 * chance:.0f} %)"
        return "learning", f"{told}, spread {last.std_h:.2f}"
    if rotation_accuracy is None and last.rank_h > 1.2 * first.rank_h and last.std_h > 1.1 * first.std_h:
        return (
            "learning",
            f"directions in use grew from {first.rank_h:.0f} to {last.rank_h:.0f}, spread {last.std_h:.2f}",
        )
    told = ""
    if rotation_accuracy is not None:
        told = f"rotation accuracy {100 * rotation_accuracy:.0f} %, of chance {100 * chance:.0f} %, is learning from "
        told += f"{100 * (chance + TOLD * (1 - chance)):.0f} % on; "
    return "too early to tell", f"no labels; {told}no collapse (spread {last.std_h:.2f}, rank {last.rank_h:.0f})"


def record(look: Look) -> dict[str, float]:
    """As metrics.jsonl holds it."""
    return {key: round(value, 4) for key, value in asdict(look).items() if value is not None}
