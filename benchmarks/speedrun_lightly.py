"""The speed-run's entry of lightly: SimCLR by its own parts, for a time budget; writes an encoder file.

python -m benchmarks.speedrun_lightly 1m 0 OUT
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from benchmarks.peers import Lightly
from effssl.augment.options import Augment
from effssl.data import open_data
from effssl.data.arrays import ArrayImages
from effssl.network.loaded import dump_encoder
from effssl.recipes.budgets import parse_budget
from effssl.schedules import cosine

STARTED = time.monotonic()
ENCODER, BATCH, SIDE, LR = "small", 128, 32, 0.1


def main() -> None:
    budget, seed, out = sys.argv[1:]
    torch.manual_seed(int(seed))
    images = open_data("cifar10").train
    assert isinstance(images, ArrayImages)
    peer = Lightly("simclr", ENCODER, images.pixels, BATCH)
    while done(budget) < 1:
        for x1, x2 in peer.loader:
            for group in peer.optimizer.param_groups:
                group["lr"] = LR * cosine(min(1.0, done(budget)), 1.0, 0.0)
            peer.step(*(x.to(memory_format=torch.channels_last) for x in (x1, x2)))
            if done(budget) >= 1:
                break
    augment = Augment()
    about = {"encoder": ENCODER, "image_size": SIDE, "stem": "auto", "mean": augment.mean, "std": augment.std}
    Path(out).with_suffix(".safetensors").write_bytes(dump_encoder(peer.f, about))


def done(budget: str) -> float:
    """The share of the budget that is gone."""
    return (time.monotonic() - STARTED) / parse_budget(budget)


if __name__ == "__main__":
    main()
