"""Ten steps of many objectives in double precision, by however many processes torchrun starts; weights to a file.

In double precision nothing but a wrong computation can make two processes differ from one.
"""

from __future__ import annotations

import dataclasses
import sys

import torch
from torch import Tensor

from effssl.data import ArrayImages, Data, open_data
from effssl.data.views import Views
from effssl.objectives.step import Step
from effssl.recipes import resolve
from effssl.runtime.distribution import process_group, rank
from effssl.training import trainer
from effssl.training.trainer import Trainer

STEPS, FEW = 10, 3  # the longer way for the plain objectives
ROTATED_ONLINE = {"copy_of": "", "scale": [0.2, 1.0], "online": True, "angle_embedding": True, "upright": 0.5}
ONE_SIDED = {"large": {"count": 1, "target": False}, "target": {"count": 1}}
EFFICIENT = {"views": ONE_SIDED | {"rotated": ROTATED_ONLINE}}
OBJECTIVES: list[tuple[str, dict]] = [
    ("simclr", {}),
    ("simclr", {"simclr": {"known_labels": 0.5}}),
    ("byol+rotation", {}),
    ("byol+rotation", {"rotation": {"noise": 0.3}}),
    ("simsiam", {"views": {"large": {"rotated": True}}}),
    ("swav+rotation", {}),
    ("swav+rotation", {"swav": {"queue": 50, "queue_from": 0.0}, "views": {"small": {"count": 2, "size": 16}}}),
    ("moco+rotation", {"moco": {"queue": 100}}),
    ("moco", {"moco": {"queue": 20}, "views": ONE_SIDED}),
    ("supcon", {"supcon": {"label_noise": 0.2}}),
    ("supervised+rotation", {"projector": {"layers": 2}}),  # a projector that only one term uses
    ("supervised", {"projector": {"layers": 2}}),  # and one that nobody uses
    ("rotation", {}),
    ("byol+rotation_supcon", {"views": {"rotated": {"joint_pass": False}}}),
    ("byol+rotation_cosine", {}),
    ("byol+rotation", {"rotation": {"shared": 3}}),
    ("byol+jigsaw", {"image_size": 64}),
    ("byol+rotation", EFFICIENT),
    ("simsiam+rotation", EFFICIENT),
    ("simclr+rotation", EFFICIENT),
    ("swav+rotation", EFFICIENT),
    ("moco+rotation", EFFICIENT),
    ("simclr+rotation", {"views": {"large": {"count": 3}, "rotated": ROTATED_ONLINE}}),
    ("barlow+rotation", {}),
    ("barlow", {"views": {"small": {"count": 2, "size": 16}}}),
    ("nnclr+rotation", {"nnclr": {"queue": 40}}),
    ("nnclr", {"nnclr": {"queue": 20}, "views": {"small": {"count": 2, "size": 16}}}),
    ("dino+rotation", {"dino": {"freeze_epochs": 0.0}}),
    ("dino", {"dino": {"prototypes": 20, "freeze_epochs": 0.0}, "views": {"small": {"count": 2, "size": 16}}}),
    ("distill+rotation", {"distill": {"teacher": "pixels-8"}}),
    ("simclr+distill", {"distill": {"teacher": "pixels-8", "loss": "relational"}}),
    ("distill", {"distill": {"teacher": "pixels-8", "targets": "view"}, "views": {"small": {"count": 2, "size": 16}}}),
    ("vicreg+rotation", {"optimizer": {"name": "adamw"}, "views": {"small": {"count": 2, "size": 16}}, "ema": 0.9}),
    ("tcr+rotation", {"optimizer": {"name": "lars"}, "views": {"large": {"count": 3}}}),
    ("sigreg+rotation", {"views": {"small": {"count": 2, "size": 16}}}),
    ("byol+rotation", {"freeze": 2, "optimizer": {"layer_decay": 0.5}}),
    ("simclr+words", {"words": {"filters": 8, "dim": 16}, "stem": "pca", "optimizer": {"name": "muon"}}),
]


def in_double(views: Views) -> Views:
    pixels = {name: x.double() for name, x in views.pixels.items()}
    return dataclasses.replace(views, pixels=pixels, clean=None if views.clean is None else views.clean.double())


def run(objective: str, flags: dict, data: Data) -> dict[str, Tensor]:
    size = flags.get("image_size", 16)
    steps = FEW if flags or size > 16 else STEPS
    base = {"data": "digits", "objective": objective, "image_size": size, "batch_size": 16, "epochs": 4}
    recipe = f"cpu-{objective.split('+')[0]}"
    plan = resolve(base | {"recipe": recipe, "encoder": "small", "lr": 0.05} | flags)
    running = Trainer(plan, data, torch.device("cpu"))
    found: dict[str, Tensor] = {}
    for i, views in enumerate(running.loader.epoch(0)):
        running.step(in_double(views))
        if i == 0:
            pairs = running.objective.named_parameters()
            found |= {f"grad {name}": p.grad.clone() for name, p in pairs if p.grad is not None}
        if i + 1 == steps:
            break
    # Running statistics of keys are each process's own and nobody reads them.
    state = {k: v for k, v in running.objective.state_dict().items() if torch.is_tensor(v)}
    if running.average is not None:
        found |= {f"average {k}": v.clone() for k, v in running.average.average.items()}
    of_norms = [k for k in state if "moco.target_network" in k and ("running" in k or "tracked" in k)]
    return found | {k: v for k, v in state.items() if k not in of_norms}


def main(out: str) -> None:
    torch.set_num_threads(1)
    Step.run = lambda self, module, x: module(x)
    build = trainer.build_objective
    trainer.build_objective = lambda *args: build(*args).double()
    digits = open_data("digits")
    data = Data("digits", ArrayImages(digits.train.pixels[:1000], digits.train.labels[:1000], digits.train.classes))
    with process_group():
        found = {f"{objective} {flags}": run(objective, flags, data) for objective, flags in OBJECTIVES}
        if rank() == 0:
            torch.save(found, out)


if __name__ == "__main__":
    main(sys.argv[1])
