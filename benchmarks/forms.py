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
from effssl.training.trainer import Trainer

METHODS = ("byol", "simsiam", "swav", "simclr")
IMAGES = 2560


def trainer(recipe: str, objective: str) -> Trainer:
    plan = resolve({"data": "x", "recipe": recipe, "objective": objective, "image_size": 32, "epochs": 2})
    with images_of("memory", IMAGES, "") as data:
        one = Trainer(plan, data, pick_device("cpu"))
    one.clock.set_total_steps(one.clock.steps_per_epoch)
    return one


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
            "base": trainer(f"cpu-{method}", method),
            "paper": trainer(f"cpu-{method}", f"{method}+rotation"),
            "ours": trainer(f"cpu-{method}-efficient", f"{method}+rotation"),
        }
        times = interleaved({name: lambda one=one: epoch(one) for name, one in forms.items()}, args.repeats)
        clock = {name: median(values) for name, values in times.items()}
        cost = {name: flops(one) for name, one in forms.items()}
        cells = [f"{x[name] / x['base']:.2f}" for name in ("paper", "ours") for x in (cost, clock)]
        print(f"| `{method}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
