"""The first losses of the published bases, with and without rotation, as stored for one kind of machine.

    python -m tests.reference_losses         # compare: which losses differ from the stored ones, and by how much
    python -m tests.reference_losses write   # store those of this machine, in place of its earlier ones

A commit that changes numbers changes the file with them: the change is seen, and meant. Machines of one kind have the
same processor and the same torch; others round differently, and a rounded digit grows with every step.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from effssl.data import open_data
from effssl.recipes import resolve
from effssl.runtime.distribution import mean_over_ranks, process_group, rank
from effssl.runtime.processor import CPU_INFO, processor_name
from effssl.training.trainer import Trainer

STORED = Path(__file__).with_suffix(".json")
ROOT = Path(__file__).parent.parent
STEPS = 20
OBJECTIVES = tuple(f"{base}{task}" for base in ("byol", "simclr", "simsiam", "swav") for task in ("", "+rotation"))
PROCESSES = (1, 2)
SETTINGS = {"data": "digits", "subset": 256, "batch_size": 32, "epochs": 4, "encoder": "tiny", "image_size": 16}

Losses = dict[str, list[float]]  # by objective


def machine() -> str:
    """What has to be the same for the losses to be the same to the bit; a processor's name says little in a cloud."""
    info = CPU_INFO.read_text() if CPU_INFO.exists() else ""
    numbers = [
        f"{key} {found[1]}" for key in ("cpu family", "model") if (found := re.search(rf"{key}\s+: (\d+)", info))
    ]
    return ", ".join([processor_name(), *numbers, f"torch {torch.__version__}"])


def first_losses(objective: str) -> list[float]:
    """The losses of the first steps, in this process or, under torchrun, as the mean over all."""
    plan = resolve(SETTINGS | {"objective": objective, "recipe": f"cpu-{objective.split('+')[0]}"})
    trainer = Trainer(plan, open_data("digits", subset=SETTINGS["subset"]), torch.device("cpu"))
    losses: list[float] = []
    for epoch in range(SETTINGS["epochs"]):
        for views in trainer.loader.epoch(epoch):
            losses.append(mean_over_ranks(float(trainer.step(views)[0])))
            if len(losses) == STEPS:
                return losses
    raise AssertionError(f"{objective} has {len(losses)} steps")


def of_processes(processes: int) -> Losses:
    """The losses of all objectives, by processes that torchrun starts."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "losses.json"
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command = [*launch, "-m", "tests.reference_losses", "to", str(out)]
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(out.read_text())


def stored() -> dict[str, dict[str, Losses]]:
    """All stored losses: by machine, number of processes and objective."""
    return json.loads(STORED.read_text()) if STORED.exists() else {}


def write_all(found: dict[str, Losses]) -> None:
    """Store the losses of this machine."""
    every = dict(sorted((stored() | {machine(): found}).items()))
    text = json.dumps(every, indent=1)
    STORED.write_text(re.sub(r"\n +(?=[-0-9\]])", " ", text) + "\n")  # a line for each objective


def difference(expected: list[float], losses: list[float]) -> str:
    """The first step whose loss differs, and by which share; nothing if none does."""
    for step, (before, now) in enumerate(zip(expected, losses, strict=True), start=1):
        if before != now:
            return f"step {step}: {before!r} became {now!r} ({abs(now / before - 1):.1e})"
    return ""


def main(args: list[str]) -> None:
    """Compute all losses; compare them, store them, or hand them to the process that asked."""
    torch.set_num_threads(1)
    if args[:1] == ["to"]:
        with process_group():
            found = {objective: first_losses(objective) for objective in OBJECTIVES}
            if rank() == 0:
                Path(args[1]).write_text(json.dumps(found))
        return
    computed = {str(processes): of_processes(processes) for processes in PROCESSES}
    if args == ["write"]:
        write_all(computed)
        print(f"stored for {machine()}")
        return
    known = stored().get(machine())
    if known is None:
        sys.exit(f"no losses are stored for {machine()}; store them: python -m tests.reference_losses write")
    lines = [
        f"{objective}, {processes} process(es): {change}"
        for processes, losses in computed.items()
        for objective in OBJECTIVES
        if (change := difference(known[processes][objective], losses[objective]))
    ]
    print("\n".join(lines) or f"the first {STEPS} losses of all objectives are those that are stored")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
