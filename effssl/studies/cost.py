"""The cost of a study before it runs: counted FLOPs of every arm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from effssl.recipes import resolve
from effssl.run import RunFolder
from effssl.runtime.progress import say, table
from effssl.schema import merge
from effssl.studies.plan import ArmRun

IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "imagenet100": 126_689, "imagenet1k": 1_281_167}
GROWING_STEPS = 20  # steps that are counted where the size of the views changes during training


def gflop_per_image(run: ArmRun) -> float:
    """GFLOPs of training on one image once, counted on torch's meta device, where nothing is computed."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from effssl.data import ArrayImages, Data
    from effssl.training.trainer import Trainer

    config = resolve(dict(run.flags)).config
    size, batch = config.image_size or 32, config.batch_size
    labels = torch.arange(2 * batch) % 10
    pixels = torch.zeros(2 * batch, 3, size, size, dtype=torch.uint8)
    plan = resolve(merge(dict(run.flags), {"image_size": size, "augment": {"saliency": ""}}))
    trainer = Trainer(plan, Data("zeros", ArrayImages(pixels, labels, list("0123456789"))), torch.device("meta"))
    steps = GROWING_STEPS if config.schedule.grow_from < 1 else 1
    trainer.clock.set_total_steps(steps)
    with FlopCounterMode(display=False) as counter:
        for step in range(steps):
            trainer.step(next(iter(trainer.loader.epoch(step // trainer.loader.steps, step % trainer.loader.steps))))
    return counter.get_total_flops() / 1e9 / batch / steps


def gflop_of(run: ArmRun) -> float:
    """GFLOPs of a whole training run."""
    from effssl.data import open_data

    config = resolve(dict(run.flags)).config
    images = config.subset or IMAGES.get(config.data) or len(open_data(config.data, classes=config.classes).train)
    return gflop_per_image(run) * images * config.epochs


def seconds_per_gflop(folder: Path) -> float | None:
    """The speed of the finished runs in a folder, of whichever study; None without any whose cost is known."""
    folders = [item for item in sorted(folder.iterdir()) if item.is_dir()] if folder.is_dir() else []
    lines = [line for run in map(RunFolder, folders) if run.finished for line in run.metrics()[-1:]]
    known = [line for line in lines if "seconds" in line and line.get("flops", 0) > 0]
    return sum(line["seconds"] for line in known) / sum(line["flops"] / 1e9 for line in known) if known else None


def show_plan(title: str, runs: Sequence[ArmRun], todo: Sequence[ArmRun]) -> None:
    """Print what will be run and its cost; also in minutes where finished runs show how fast this machine is."""
    costs = {run.arm.name: gflop_of(run) for run in {run.arm.name: run for run in runs}.values()}
    rows = [
        (arm, str(sum(r.arm.name == arm for r in runs)), str(sum(r.arm.name == arm for r in todo)), f"{cost:,.0f}")
        for arm, cost in costs.items()
    ]
    table(title, ("arm", "runs", "to do", "GFLOP per run"), rows)
    total = sum(costs[run.arm.name] for run in todo)
    speed = seconds_per_gflop(runs[0].folder.parent)
    minutes = f", about {total * speed / 60:.0f} core-minutes at the speed of the finished runs" if speed else ""
    say(f"to do: {len(todo)} runs, {total:,.0f} GFLOP of training{minutes}")
