"""Fine-tuning as a candidate: a copy of the encoder and a linear layer, trained together on the labelled images.

The layer begins as the linear classifier of the frozen encoder, so that few steps suffice and the first ones do not
spoil the features. Kumar et al. 2022.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effssl.data import Images
from effssl.evaluation.fine_tuning import FineTuning, train_with_layer
from effssl.explore.gallery import open_gallery
from effssl.features.extract import feature_batches
from effssl.features.heads import Candidate, LinearHead
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import say

FineTune = Literal["auto", "on", "off"]
NAME = "fine-tuned"
START = Candidate("linear", 10.0)
STEPS, FEWEST_EPOCHS, MOST_EPOCHS, BATCH = 60, 5, 20, 32
LR, HEAD_LR = 0.01, 0.1
FEWEST = 30  # labelled images that auto asks for
LONGEST = 120.0  # seconds that auto allows
PASSES = 3  # of the encoder, that a training step takes


class UnitLinear(nn.Module):
    """A linear layer on L2-normalized features: h N×D → logits N×C."""

    def __init__(self, head: LinearHead) -> None:
        super().__init__()
        self.weight = nn.Parameter(head.weight.clone())
        self.bias = nn.Parameter(head.bias.clone())

    def forward(self, h: Tensor) -> Tensor:
        """Logits of features."""
        return F.linear(F.normalize(h, dim=1), self.weight, self.bias)

    def head(self) -> LinearHead:
        """The layer as a classifier of L2-normalized features."""
        return LinearHead(self.weight.detach().cpu(), self.bias.detach().cpu())


@dataclass(frozen=True)
class Tuner:
    """An encoder and the labelled images that it is fine-tuned on."""

    encoder: LoadedEncoder  # without whitening: that of the old features does not fit the new ones
    images: Images
    features: Tensor  # of the labelled images, N×D, L2-normalized

    def fit(self, rows: Tensor, labels: Tensor, classes: int) -> tuple[LoadedEncoder, LinearHead]:
        """A fine-tuned copy of the encoder, and its classifier; labels are those of the rows."""
        tuned = copy.deepcopy(self.encoder)
        head = START.fit(self.features[rows], labels, classes)
        assert isinstance(head, LinearHead)
        layer = UnitLinear(head).to(tuned.device)
        settings = FineTuning(epochs_for(len(rows)), BATCH, LR, HEAD_LR, seed=0)
        train_with_layer(tuned, layer, self.images.select(rows), labels, settings, workers=0)
        return tuned, layer.head()

    def logits(self, fitted: tuple[LoadedEncoder, LinearHead], rows: Tensor) -> Tensor:
        """Logits of some of the images, N×C."""
        return fitted[1].logits(_unit(fitted[0], self.images.select(rows)))


def epochs_for(count: int) -> int:
    """Epochs of a fine-tuning on so many images.

    >>> epochs_for(20), epochs_for(100), epochs_for(5000)
    (20, 15, 5)
    """
    return min(MOST_EPOCHS, max(FEWEST_EPOCHS, math.ceil(STEPS / math.ceil(count / BATCH))))


def open_tuner(
    encoder: LoadedEncoder, data: str | Path | None, names: Sequence[str], finetune: FineTune, fits: int
) -> Tuner | None:
    """What fine-tunes on the images of these names; None where it is off, or where auto leaves it out, with a line."""
    if finetune not in get_args(FineTune):
        raise RequestError(f"finetune is auto, on or off, not {finetune!r}")
    if finetune == "off":
        return None
    if finetune == "auto" and len(names) < FEWEST:
        say(f"fine-tuning is not compared with fewer than {FEWEST} labelled images; --finetune on compares it")
        return None
    encoder = encoder.without_whitening()
    why = ""
    if not list(encoder.encoder.parameters()):
        why = f"{encoder.about['encoder']} has no weights to train"
    elif data is None:
        why = "it needs the images themselves: --data in place of --features"
    images = _labelled(data, names) if data is not None and not why else None
    if images is None:
        why = why or "the labelled images are in several splits of the data set"
        if finetune == "on":
            raise RequestError(f"fine-tuning cannot be compared: {why}")
        return None
    begin = time.perf_counter()
    features = _unit(encoder, images)
    seconds = (time.perf_counter() - begin) * PASSES * epochs_for(len(names)) * fits
    if finetune == "auto" and seconds > LONGEST:
        say(f"fine-tuning is not compared: it would take about {seconds / 60:.0f} min; --finetune on compares it")
        return None
    return Tuner(encoder, images, features)


def _unit(encoder: LoadedEncoder, images: Images) -> Tensor:
    """L2-normalized features; so few images are decoded here, as starting workers takes longer."""
    with torch.inference_mode():
        h = torch.cat([h for h, _ in feature_batches(encoder, images, workers=0)])
    return F.normalize(h.clone(), dim=1)


def _labelled(data: str | Path, names: Sequence[str]) -> Images | None:
    """The images of these names, in this order; None where they are not all in one split."""
    gallery = open_gallery(data, "none")
    row = {name: i for i, name in enumerate(gallery.names)}
    rows = torch.tensor([row[name] for name in names])
    start = 0
    for images in gallery.splits:
        inside = (rows >= start) & (rows < start + len(images))
        if bool(inside.all()):
            return images.select(rows - start)
        start += len(images)
    return None
