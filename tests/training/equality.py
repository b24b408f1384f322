"""Twenty steps of many objectives in double precision, by however many processes torchrun starts; weights to a file.

In double precision nothing but a wrong computation can make two processes differ from one.
"""

from __future__ import annotations

import dataclasses
import sys

import torch
from torch import Tensor

from effssl.data import ArrayImages, Data, open_data
from effssl.objectives.objective import Step
from effssl.recipes import resolve
from effssl.runtime.distribution import joined, rank
from effssl.training import loop

STEPS, FEW = 20, 3  # the longer way for the plain objectives
OBJECTIVES: list[tuple[str, dict]] = [
    ("simclr", {}),
    ("simclr", {"simclr": {"known_labels": 0.5}}),
    ("byol+rotation", {}),
    ("byol+rotation", {"rotation": {"noise": 0.3}}),
    ("simsiam", {"augment": {"rotate": True}}),
    ("swav+rotation", {}),
    ("swav+rotation", {"swav": {"queue": 50, "queue_from": 0.0}, "augment": {"small": 2, "small_size": 16}}),
    ("moco+rotation", {"moco": {"queue": 100}}),
    ("moco", {"moco": {"queue": 20, "symmetric": False}}),
    ("supcon", {"supcon": {"label_noise": 0.2}}),
    ("supervised+rotation", {"projector": {"layers": 2}}),  # a projector that only one term uses
    ("supervised", {"projector": {"layers": 2}}),  # and one that nobody uses
    ("rotation", {}),
    ("byol+rotation", {"rotation": {"form": "supcon", "joint_pass": False}}),
    ("byol+rotation", {"rotation": {"form": "cosine", "shared": 3}}),
    ("byol+jigsaw", {"image_size": 64}),
    ("byol+rotation", {"rotation": {"for_base": "more"}}),
    ("byol+rotation", {"rotation": {"for_base": "instead", "upright": 0.5}}),
    ("simsiam+rotation", {"rotation": {"for_base": "instead"}}),
    ("simclr+rotation", {"rotation": {"for_base": "instead", "scale": [0.2, 1.0]}}),
    ("simclr+rotation", {"rotation": {"for_base": "more"}}),
    ("swav+rotation", {"rotation": {"for_base": "more"}}),
]


def in_double(views):
    doubled = {name: [x.double() for x in getattr(views, name)] for name in ("large", "small", "own")}
    clean = None if views.clean is None else views.clean.double()
    return dataclasses.replace(views, **doubled, clean=clean)


def run(objective: str, flags: dict, data: Data) -> dict[str, Tensor]:
    size = flags.get("image_size", 16)
    steps = FEW if flags or size > 16 else STEPS
    base = {
        "data": "digits",
        "objective": objective,
        "form": "paper",
        "image_size": size,
        "batch_size": 16,
        "epochs": 4,
    }
    rotation = {"size": 0} | flags.get("rotation", {})
    plan = resolve(base | {"encoder": "small", "lr": 0.05} | flags | {"rotation": rotation})
    trainer = loop.Trainer(plan, data, torch.device("cpu"))
    found: dict[str, Tensor] = {}
    for i, views in enumerate(trainer.loader.epoch(0)):
        trainer.step(in_double(views))
        if i == 0:
            pairs = trainer.objective.named_parameters()
            found |= {f"grad {name}": p.grad.clone() for name, p in pairs if p.grad is not None}
        if i + 1 == steps:
            break
    # Running statistics of keys are each process's own and nobody reads them.
    state = {k: v for k, v in trainer.objective.state_dict().items() if torch.is_tensor(v)}
    return found | {k: v for k, v in state.items() if not ("moco.target" in k and ("running" in k or "tracked" in k))}


def main(out: str) -> None:
    torch.set_num_threads(1)
    Step.run = lambda self, module, x: module(x)
    make = loop.make_objective
    loop.make_objective = lambda *args: make(*args).double()
    digits = open_data("digits")
    data = Data("digits", ArrayImages(digits.train.pixels[:1000], digits.train.labels[:1000], digits.train.classes))
    with joined():
        found = {f"{objective} {flags}": run(objective, flags, data) for objective, flags in OBJECTIVES}
        if rank() == 0:
            torch.save(found, out)


if __name__ == "__main__":
    main(sys.argv[1])
