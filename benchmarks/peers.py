"""Training in images per second: effssl against lightly, same encoder, batch, views, heads, precision and threads.

lightly runs as its own examples do: its transforms in two worker processes, its heads, losses and momentum update, in a
plain loop with SGD. Both get the same images in memory; lightly's as PIL images, which its transforms take.
"""

from __future__ import annotations

import copy
import time
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.functional import to_pil_image

from benchmarks.augmentation import lightly_view, photo_tiles
from effssl.augment.options import Augment
from effssl.data import ArrayImages, Data
from effssl.network.encoders import build_encoder
from effssl.recipes import resolve
from effssl.runtime.device import pick_device
from effssl.training.trainer import Trainer

CASES = {
    "small encoder, byol, batch 128": ("byol", "small", 128, 24),
    "small encoder, simclr, batch 128": ("simclr", "small", 128, 24),
    "ResNet-18 at 32 px, byol, batch 32": ("byol", "resnet18", 32, 6),
    "ResNet-18 at 32 px, simclr, batch 32": ("simclr", "resnet18", 32, 6),
}


def measure(repeats: int) -> dict[str, dict[str, float]]:
    try:
        import lightly  # noqa: F401
    except ImportError:
        print("lightly is not installed (make bench installs it): it is left out")
        return {}
    return {name: _measure(*case, repeats) for name, case in CASES.items()}


def _measure(objective: str, encoder: str, batch: int, steps: int, repeats: int) -> dict[str, float]:
    tiles = photo_tiles(32)
    pixels = tiles.repeat(-(-batch * steps // len(tiles)), 1, 1, 1)[: batch * steps]
    plan = resolve(
        {"data": "photos", "objective": objective, "recipe": f"cpu-{objective}", "image_size": 32, "epochs": 1000}
        | {"encoder": encoder, "batch_size": batch, "lr": 0.05}
    )
    trainer = Trainer(plan, Data("photos", ArrayImages(pixels)), pick_device("cpu"))
    theirs = Lightly(objective, encoder, pixels, batch)

    def ours() -> float:
        """An epoch but for its first step, as the other one is measured."""
        started = 0.0
        for i, views in enumerate(trainer.loader.epoch(0)):
            trainer.step(views)
            started = started or time.perf_counter()
            count = i
        return count * batch / (time.perf_counter() - started)

    ours(), theirs.epoch()
    rates = [(ours(), theirs.epoch()) for _ in range(repeats)]
    effssl, lightly = (median(column) for column in zip(*rates, strict=True))
    ratios = sorted(a / b for a, b in rates)
    return {"effssl": effssl, "lightly": lightly, "ratio": effssl / lightly, "least": ratios[0], "most": ratios[-1]}


class Lightly:
    """A training loop of lightly's parts."""

    def __init__(self, objective: str, encoder: str, pixels: torch.Tensor, batch: int) -> None:
        from lightly.loss import NegativeCosineSimilarity, NTXentLoss
        from lightly.models.modules import BYOLPredictionHead, BYOLProjectionHead, SimCLRProjectionHead

        self.objective, self.batch = objective, batch
        self.f = build_encoder(encoder, 32).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        kind = BYOLProjectionHead if objective == "byol" else SimCLRProjectionHead
        self.g = kind(self.f.dim, 512, 128)
        parts: list[nn.Module] = [self.f, self.g]
        if objective == "byol":
            self.q = BYOLPredictionHead(128, 512, 128)
            self.target = copy.deepcopy(nn.ModuleList(parts)).requires_grad_(False)
            parts.append(self.q)
        self.loss = NegativeCosineSimilarity() if objective == "byol" else NTXentLoss(0.2)
        self.optimizer = torch.optim.SGD(nn.ModuleList(parts).parameters(), 0.05, 0.9, weight_decay=1e-4)
        self.loader = DataLoader(
            _Pictures(pixels), batch, shuffle=True, drop_last=True, num_workers=2, persistent_workers=True
        )

    def epoch(self) -> float:
        """Images per second, workers' start not counted."""
        started = 0.0
        for i, (x1, x2) in enumerate(self.loader):
            self.step(*(x.to(memory_format=torch.channels_last) for x in (x1, x2)))
            started = started or time.perf_counter()
            count = i
        return count * self.batch / (time.perf_counter() - started)

    def step(self, x1: torch.Tensor, x2: torch.Tensor) -> None:
        from lightly.models.utils import update_momentum

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
    """Two views of each image by lightly's own transform, with our recipe's strengths."""

    def __init__(self, pixels: torch.Tensor) -> None:
        self.pictures = [to_pil_image(x) for x in pixels]
        self.view = lightly_view(Augment(), 32)

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.view(self.pictures[row]), self.view(self.pictures[row])
