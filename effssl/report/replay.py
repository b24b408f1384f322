"""The first training steps of a run once more: its objective, the views of its batches, and examples of its tasks."""

from __future__ import annotations

import dataclasses
from itertools import islice
from typing import Any

import torch
from torch import nn

from effssl.data import Data, Images
from effssl.data.joined import images_per_epoch
from effssl.data.views import Views
from effssl.objectives.expression import parse
from effssl.objectives.objective import Objective
from effssl.objectives.step import frozen_statistics
from effssl.objectives.term import TaskExamples
from effssl.recipes.resolve import Plan
from effssl.run import RunFolder
from effssl.training.build import build_loader, build_objective
from effssl.training.checkpoint import evaluated_weights
from effssl.training.clock import Clock

IMAGES = 256  # at least so many images are in the batches, if the data set has them


def plan_of(run: RunFolder) -> Plan:
    """The plan of a finished run, in float32, without compiling and without processes that decode."""
    config = dataclasses.replace(run.config, compile=False, precision="float32", workers=0)
    weights = {term: getattr(config, term).weight for term in parse(config.objective)}
    return Plan(config, {term: weight for term, weight in weights.items() if weight})


def trained_objective(run: RunFolder, data: Data, state: dict[str, Any] | None, device: torch.device) -> Objective:
    """The run's network and terms in eval mode, with the weights of its checkpoint if there is one."""
    objective = build_objective(plan_of(run), device, data)
    if state is not None:
        objective.load_state_dict(evaluated_weights(state))
    return objective.requires_grad_(False).eval()


def first_batches(run: RunFolder, images: Images, objective: Objective, device: torch.device) -> list[Views]:
    """The first batches with exactly the views of training: all randomness is seeded by the step."""
    size = run.config.batch_size
    clock = Clock.of(run.config, images_per_epoch(images))
    loader = build_loader(objective, images, device, clock, slice(0, min(IMAGES, size)))
    return list(islice(loader.epoch(0), -(-IMAGES // size)))


def angle_sets(run: RunFolder) -> dict[str, tuple[float, ...]]:
    """The angles of each rotated view group; a label is a position in its set."""
    return {name: group.angles for name, group in run.config.views.named().items() if group.rotated}


def task_examples(objective: Objective, batches: list[Views]) -> dict[str, list[TaskExamples]]:
    """Examples of each task, one per batch, on the CPU. Batch norm uses batch statistics, as in training."""
    norms = [module for module in objective.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    found: dict[str, list[TaskExamples]] = {}
    with torch.inference_mode(), frozen_statistics(objective, True):
        for norm in norms:
            norm.train()
        for views in batches:
            step = objective.step(views)
            for name, term in objective.items():
                examples = term.examples(step)
                if examples is not None:
                    found.setdefault(name, []).append(_on_cpu(examples))
        for norm in norms:
            norm.eval()
    return found


def _on_cpu(examples: TaskExamples) -> TaskExamples:
    logits = None if examples.logits is None else examples.logits.float().cpu()
    return TaskExamples(examples.pixels.float().cpu(), examples.labels.cpu(), logits, examples.names)
