"""Where the time of a step goes, by kind of operation: milliseconds on all cores.

python -m benchmarks.profile [--encoder small|resnet18] [--objective byol+rotation] [--batch 128]
"""

from __future__ import annotations

import argparse

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.augmentation import photo_tiles
from effssl.data import ArrayImages, Data
from effssl.recipes import resolve
from effssl.runtime.device import pick_device
from effssl.runtime.memory import keep_freed_memory
from effssl.runtime.progress import table
from effssl.training.trainer import Trainer

KINDS = {
    "convolution, forward": ("mkldnn_convolution",),
    "convolution, backward": ("convolution_backward",),
    "matrix products": ("mm", "addmm", "bmm"),
    "batch norm": ("native_batch_norm", "native_batch_norm_backward"),
    "ReLU": ("threshold_backward", "clamp_min_", "relu_"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile")
    parser.add_argument("--encoder", default="small", choices=("small", "resnet18"))
    parser.add_argument("--objective", default="byol")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()
    keep_freed_memory()
    recipe = {"recipe": "cpu-byol" if args.encoder == "small" else "cifar10-byol", "batch_size": args.batch}
    plan = resolve({"data": "photos", "objective": args.objective, "image_size": 32, "epochs": 1000} | recipe)
    trainer = Trainer(plan, Data("photos", ArrayImages(photo_tiles(32))), pick_device("cpu"))
    batches = [views for _, views in zip(range(args.steps), forever(trainer), strict=False)]
    trainer.step(batches[0])
    times = {"views": milliseconds(lambda: [None for _, _ in zip(batches, forever(trainer), strict=False)])}
    times |= milliseconds_by_kind(lambda: [trainer.step(views) for views in batches])
    total = sum(times.values())
    rows = [(name, f"{t / args.steps:.1f}", f"{100 * t / total:.0f} %") for name, t in times.items()]
    table(f"one step of {args.objective}, {args.encoder} encoder", ("", "ms", "share"), rows)


def forever(trainer: Trainer):
    epoch = 0
    while True:
        yield from trainer.loader.epoch(epoch)
        epoch += 1


def milliseconds_by_kind(function) -> dict[str, float]:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        function()
    own = {event.key.removeprefix("aten::"): event.self_cpu_time_total / 1000 for event in found.key_averages()}
    times = {kind: sum(own.pop(name, 0.0) for name in names) for kind, names in KINDS.items()}
    return times | {"everything else": sum(own.values())}


def milliseconds(function) -> float:
    return sum(milliseconds_by_kind(function).values())


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
