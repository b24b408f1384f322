"""Training in images per second: effssl against lightly, same encoder, batch, views, heads and threads.

lightly runs as its own examples do: its transforms in two worker processes, its heads, losses and momentum update, in a
plain loop with SGD in float32. effssl runs in the precision that is fastest here, as with `--precision auto`. Both get
the same images: in memory, lightly's as PIL images, which its transforms take; or the same JPEG files.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.augmentation import lightly_view
from benchmarks.precision import fastest
from benchmarks.training import images_of
from effssl.augment.options import Augment
from effssl.data import Data
from effssl.network.encoders import build_encoder
from effssl.recipes import resolve
from effssl.runtime.device import pick_device
from effssl.training.trainer import Trainer


@dataclass(frozen=True)
class Case:
    """What both train."""

    objective: str
    encoder: str
    batch: int
    steps: int  # of an epoch
    size: int = 32
    stem: str = "small"
    kind: str = "memory"  # or files


CASES = {
    "small encoder, byol, batch 128": Case("byol", "small", 128, 24),
    "small encoder, simclr, batch 128": Case("simclr", "small", 128, 24),
    "ResNet-18 at 32 px, byol, batch 32": Case("byol", "resnet18", 32, 6),
    "ResNet-18 at 32 px, simclr, batch 32": Case("simclr", "resnet18", 32, 6),
    "ResNet-18 at 128 px, simclr, JPEG files, batch 32": Case("simclr", "resnet18", 32, 12, 128, "large", "files"),
}


def measure(repeats: int, photos: str = "") -> dict[str, dict[str, float]]:
    try:
        import lightly  # noqa: F401
    except ImportError:
        print("lightly is not installed (make bench installs it): it is left out")
        return {}
    return {name: _measure(case, repeats, photos) for name, case in CASES.items()}


def _measure(case: Case, repeats: int, photos: str) -> dict[str, float]:
    with images_of(case.kind, case.batch * case.steps, photos) as data:
        theirs, ours = Lightly(case, data), Ours(case, data)
        ours.epoch(), theirs.epoch()
        rates = [(ours.epoch(), theirs.epoch()) for _ in range(repeats)]
    effssl, lightly = (median(column) for column in zip(*rates, strict=True))
    ratios = sorted(a / b for a, b in rates)
    return {"effssl": effssl, "lightly": lightly, "ratio": effssl / lightly, "least": ratios[0], "most": ratios[-1]}


def rate(batches: Iterable[Any], step: Callable[[Any], object], batch: int) -> float:
    """Images per second of an epoch but for its first step, so that the start of workers is not counted."""
    started, count = 0.0, 0
    for i, views in enumerate(batches):
        step(views)
        started = started or time.perf_counter()
        count = i
    return count * batch / (time.perf_counter() - started)


class Ours:
    """A run as `effssl pretrain` builds it."""

    def __init__(self, case: Case, data: Data) -> None:
        request = {"data": data.name, "objective": case.objective, "recipe": f"cpu-{case.objective}", "epochs": 1000}
        request |= {"encoder": case.encoder, "batch_size": case.batch, "image_size": case.size, "stem": case.stem}
        request |= {"lr": 0.05, "precision": fastest()}
        self.trainer = Trainer(resolve(request), data, pick_device("cpu"))
        self.batch = case.batch

    def epoch(self) -> float:
        """Images per second."""
        return rate(self.trainer.loader.epoch(0), self.trainer.step, self.batch)


class Lightly:
    """A training loop of lightly's parts."""

    def __init__(self, case: Case, data: Data) -> None:
        from lightly.loss import NegativeCosineSimilarity, NTXentLoss
        from lightly.models.modules import BYOLPredictionHead, BYOLProjectionHead, SimCLRProjectionHead

        self.objective, self.batch = case.objective, case.batch
        self.f = build_encoder(case.encoder, case.size, case.stem)
        self.f.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        kind = BYOLProjectionHead if case.objective == "byol" else SimCLRProjectionHead
        self.g = kind(self.f.dim, 512, 128)
        parts: list[nn.Module] = [self.f, self.g]
        if case.objective == "byol":
            self.q = BYOLPredictionHead(128, 512, 128)
            self.target = copy.deepcopy(nn.ModuleList(parts)).requires_grad_(False)
            parts.append(self.q)
        self.loss = NegativeCosineSimilarity() if case.objective == "byol" else NTXentLoss(0.2)
        self.optimizer = torch.optim.SGD(nn.ModuleList(parts).parameters(), 0.05, 0.9, weight_decay=1e-4)
        self.loader = DataLoader(
            _Pictures(data, case.size), case.batch, shuffle=True, drop_last=True, num_workers=2, persistent_workers=True
        )

    def epoch(self) -> float:
        """Images per second."""
        return rate(self.loader, lambda views: self.step(*views), self.batch)

    def step(self, x1: torch.Tensor, x2: torch.Tensor) -> None:
        """One step on two views."""
        from lightly.models.utils import update_momentum

        x1, x2 = (x.to(memory_format=torch.channels_last) for x in (x1, x2))
        if self.objective == "byol":
            update_momentum(self.f, self.target[0], 0.95)
            update_momentum(self.g, self.target[1], 0.95)
            p1, p2 = self.q(self.g(self.f(x1))), self.q(self.g(self.f(x2)))
            with torch.no_grad():
                z1, z2 = (self.target[1](self.target[0](x)) for x in (x1, x2))
            loss = 0.5 * (self.loss(p1, z2) + self.loss(p2, z1))
        else:
            loss = self.loss(self.g(self.f(x1)), self.g(self.f(x2)))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class _Pictures(Dataset):
    """Two views of each image by lightly's own transform, with our recipe's strengths; files are opened each time."""

    def __init__(self, data: Data, size: int) -> None:
        self.paths = data.train.paths
        self.pictures = [] if self.paths else [data.train.image(row) for row in range(len(data.train))]
        self.view = lightly_view(Augment(), size)

    def __len__(self) -> int:
        return len(self.paths or self.pictures)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        picture = Image.open(self.paths[row]).convert("RGB") if self.paths else self.pictures[row]
        return self.view(picture), self.view(picture)
