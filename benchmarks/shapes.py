"""Shapes of the small encoder at equal seconds: each trains for the epochs that come nearest to the same time.

python -m benchmarks.shapes [--objective simclr] [--seconds 60] [--seeds 3] [--only "as it is,width"]

CIFAR-10, 10,000 images; accuracy is that of kNN on the validation images. Seconds per epoch are measured first, all
shapes in turn on an idle machine; the runs then go two at a time, one thread each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from statistics import mean, median, stdev

from benchmarks.timing import interleaved

IMAGES, STEPS, JOBS = 10_000, 6, 2
# Channels, kernel and stride of the first convolution, then channels and stride of each block; None: no such block.
SHAPES: dict[str, tuple[tuple[int, int, int], list[tuple[int, int] | None]]] = {
    "as it is": ((16, 3, 2), [(16, 1), (32, 2), (64, 2), (128, 2)]),
    "no first block": ((16, 3, 2), [None, (32, 2), (64, 2), (128, 2)]),
    "no first block, width 24": ((24, 3, 2), [None, (48, 2), (96, 2), (192, 2)]),
    "no first block, width 32": ((32, 3, 2), [None, (64, 2), (128, 2), (256, 2)]),
    "width 8": ((8, 3, 2), [(8, 1), (16, 2), (32, 2), (64, 2)]),
    "width 24": ((24, 3, 2), [(24, 1), (48, 2), (96, 2), (192, 2)]),
    "width 32": ((32, 3, 2), [(32, 1), (64, 2), (128, 2), (256, 2)]),
    "first convolution 2×2": ((16, 2, 2), [(16, 1), (32, 2), (64, 2), (128, 2)]),
    "first convolution 4×4, stride 4": ((32, 4, 4), [(32, 1), (64, 2), (128, 2), (128, 1)]),
    "last block on 4×4 pixels": ((16, 3, 2), [(16, 1), (32, 2), (64, 2), (128, 1)]),
}


def use(shape: str) -> None:
    """Let `small` be an encoder of this shape in this process."""
    from torch import nn

    from effssl.network import encoders
    from effssl.network.small import Block, SmallEncoder

    (width, kernel, stride), blocks = SHAPES[shape]

    class Shaped(SmallEncoder):
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__(width)
            padding = (kernel - stride + 1) // 2
            self.conv1 = nn.Conv2d(3, width, kernel, stride=stride, padding=padding, bias=False)
            inputs = width
            for number, block in enumerate(blocks, start=1):
                layer: nn.Module = nn.Identity()
                if block is not None:
                    layer, inputs = Block(inputs, *block), block[0]
                setattr(self, f"layer{number}", nn.Sequential(layer))
            self.dim = inputs
            for module in self.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    encoders.SmallEncoder = Shaped  # type: ignore[misc]


def seconds_per_epoch(names: list[str], objective: str) -> dict[str, float]:
    import torch

    from benchmarks.training import images_of
    from effssl.recipes import resolve
    from effssl.runtime.device import pick_device
    from effssl.runtime.memory import keep_freed_memory
    from effssl.training.trainer import Trainer

    torch.set_num_threads(1)
    keep_freed_memory()
    flags = {"data": "x", "recipe": f"cpu-{objective.split('+')[0]}", "objective": objective, "image_size": 32}
    plan, trainers = resolve(flags), {}
    with images_of("memory", STEPS * plan.config.batch_size, "") as data:
        for name in names:
            use(name)
            trainers[name] = Trainer(plan, data, pick_device("cpu"))

    def steps(trainer: Trainer) -> None:
        for views in trainer.loader.epoch(0):
            trainer.step(views)

    times = interleaved({name: lambda t=t: steps(t) for name, t in trainers.items()}, 7)
    return {name: median(t) / (STEPS * plan.config.batch_size) * IMAGES for name, t in times.items()}


def train(shape: str, objective: str, epochs: int, seed: int) -> tuple[float, int]:
    """kNN accuracy on validation images, and the number of weights, of one run in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.shapes", "--one", shape, "--objective", objective]
    command += ["--epochs", str(epochs), "--seed", str(seed)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    text = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    knn, weights = text.split()[-2:]
    return float(knn), int(weights)


def one(shape: str, objective: str, epochs: int, seed: int) -> None:
    import effssl

    use(shape)
    with tempfile.TemporaryDirectory() as folder:
        run = effssl.pretrain(
            "cifar10", objective, out=f"{folder}/run", recipe=f"cpu-{objective.split('+')[0]}", subset=IMAGES,
            epochs=epochs, seed=seed, health={"every": epochs}, quiet=True, report=False,
        )  # fmt: skip
        weights = sum(p.numel() for p in effssl.load(run.folder).encoder.parameters())
        print(run.metrics()[-1]["knn"], weights)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shapes")
    parser.add_argument("--objective", default="simclr")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="comma-separated beginnings of names")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    parser.add_argument("--epochs", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one(args.one, args.objective, args.epochs, args.seed)
        return
    names = [name for name in SHAPES if name.startswith(tuple(args.only.split(",")))]
    if not names:
        parser.error(f"no shape begins like that; there are: {', '.join(SHAPES)}")
    costs = seconds_per_epoch(names, args.objective)
    print("| shape | weights | seconds per epoch | epochs | kNN |\n|---|---|---|---|---|", flush=True)
    with ThreadPoolExecutor(JOBS) as pool:
        found = {}
        for name in names:
            epochs = max(1, round(args.seconds / costs[name]))
            found[name] = epochs, [pool.submit(train, name, args.objective, epochs, s) for s in range(args.seeds)]
        for name, (epochs, runs) in found.items():
            scores, weights = zip(*(run.result() for run in runs), strict=True)
            spread = f" ± {stdev(scores):.1f}" if len(scores) > 1 else ""
            cells = (name, f"{weights[0]:,}", f"{costs[name]:.1f}", str(epochs), f"{mean(scores):.1f}{spread}")
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
