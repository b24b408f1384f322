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

STARTED = time.monotonic()
ENCODER, BATCH, SIDE = "small", 128, 32


def main() -> None:
    budget, seed, out = sys.argv[1:]
    torch.manual_seed(int(seed))
    images = open_data("cifar10").train
    assert isinstance(images, ArrayImages)
    peer = Lightly("simclr", ENCODER, images.pixels, BATCH)
    while time.monotonic() - STARTED < parse_budget(budget):
        for x1, x2 in peer.loader:
            peer.step(*(x.to(memory_format=torch.channels_last) for x in (x1, x2)))
            if time.monotonic() - STARTED >= parse_budget(budget):
                break
    augment = Augment()
    about = {"encoder": ENCODER, "image_size": SIDE, "stem": "auto", "mean": augment.mean, "std": augment.std}
    Path(out).with_suffix(".safetensors").write_bytes(dump_encoder(peer.f, about))


if __name__ == "__main__":
    main()
