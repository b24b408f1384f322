"""What the rotation task costs in seconds and in counted FLOPs: runs over 2,560 images of base, paper's form and ours.

The steps of a run are not all alike: in the efficient form of some methods the first ones have smaller views, and its
batches may be smaller than the base's.

python -m benchmarks.forms [--repeats 9] [--threads 1]
"""

from __future__ import annotations

import argparse
from statistics import median

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.timing import interleaved
from benchmarks.training import images_of
from effssl.recipes import resolve
from effssl.runtime.device import pick_device
from effssl.runtime.memory import keep_freed_memory
from effssl.training.loop import Trainer

METHODS = ("byol", "simsiam", "swav", "simclr")
IMAGES = 2560


def trainer(method: str, objective: str, flags: dict) -> Trainer:
    plan = resolve({"data": "x", "recipe": f"cpu-{method}", "objective": objective, "image_size": 32} | flags)
    with images_of("memory", IMAGES, "") as data:
        made = Trainer(plan, data, pick_device("cpu"))
    made.position.total = made.loader.steps
    return made


def epoch(one: Trainer) -> None:
    for views in one.loader.epoch(0):
        float(one.step(views)[0])


def flops(one: Trainer) -> int:
    with FlopCounterMode(display=False) as counter:
        epoch(one)
    return counter.get_total_flops()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forms")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    print("| method | FLOPs, paper's form | seconds | FLOPs, ours | seconds |\n|---|---|---|---|---|")
    for method in METHODS:
        forms = {
            "base": trainer(method, method, {}),
            "paper": trainer(method, f"{method}+rotation", {"form": "paper"}),
            "ours": trainer(method, f"{method}+rotation", {}),
        }
        times = interleaved({name: lambda one=one: epoch(one) for name, one in forms.items()}, args.repeats)
        clock = {name: median(values) for name, values in times.items()}
        cost = {name: flops(one) for name, one in forms.items()}
        cells = [f"{x[name] / x['base']:.2f}" for name in ("paper", "ours") for x in (cost, clock)]
        print(f"| `{method}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
