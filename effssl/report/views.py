"""What the network saw: views of a batch as training made them, rotated ones with what the head says of them."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from effssl.data import ArrayImages, Data, Images
from effssl.data.loader import ViewLoader
from effssl.data.views import Views
from effssl.features.extract import extract
from effssl.network.loaded import LoadedEncoder
from effssl.objectives.expression import parse
from effssl.objectives.objective import Objective, Step, frozen_statistics
from effssl.objectives.rotation import Rotation
from effssl.recipes import Plan
from effssl.report.embedding import FEWEST, cells
from effssl.report.sample import BLOCK, Sample, read, sheet
from effssl.run import Run
from effssl.training.build import make_objective, side_of_views

SHOWN = 8  # images whose views are shown
JUDGED = 256  # images, at least, whose rotated views are judged
TURNED = 200  # images of the quick probe, where there is no head


def plan_of(run: Run) -> Plan:
    """The run's plan again, for looking: nothing is compiled."""
    config = dataclasses.replace(run.config, compile=False, precision="float32")
    weights = {term: getattr(config, term).weight for term in parse(config.objective)}
    return Plan(config, {term: weight for term, weight in weights.items() if weight})


def objective_of(run: Run, data: Data, state: dict[str, Any] | None, device: torch.device) -> Objective:
    """The run's network and terms in eval mode, with the weights of a checkpoint if there is one."""
    objective = make_objective(plan_of(run), device, data)
    if state is not None:
        objective.load_state_dict(state["objective"])
    return objective.requires_grad_(False).eval()


def batches(run: Run, images: Images, objective: Objective, device: torch.device) -> list[Views]:
    """The run's first steps: every draw is named by its step, so these are the very views that it saw."""
    config = run.config
    loader = ViewLoader(
        images, config.augment, objective.needs, config.batch_size, config.image_size, config.seed, device, 0,
        rows=slice(0, min(JUDGED, config.batch_size)), done=lambda step: step / total,
        grow=partial(side_of_views, config),
    )  # fmt: skip
    total = config.epochs * loader.steps
    loader.steps = min(loader.steps, -(-JUDGED // config.batch_size))
    return list(loader.epoch(0))


def judge(term: Rotation, objective: Objective, views: Views) -> tuple[Tensor, Tensor, Tensor | None]:
    """Rotated views, their labels, and what the head says, with batch norm as in training: by the batch itself."""
    norms = [m for m in objective.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    with torch.inference_mode(), frozen_statistics(objective, True):
        for norm in norms:
            norm.train()
        x, labels, logits = term.judged(Step(objective.network, views, objective.joint_pass))
        for norm in norms:
            norm.eval()
    return x.cpu(), labels.cpu(), None if logits is None else logits.argmax(1).cpu()


def seen(run: Run, data: Data, objective: Objective, trained: bool, encoder: LoadedEncoder) -> dict[str, Any]:
    """The first images with their views, and which rotation the run's own head takes for which."""
    made = batches(run, data.train, objective, encoder.device)
    term = dict(objective.items()).get("rotation")
    if not isinstance(term, Rotation):
        return {"views": grid(run, data, made[0], [], encoder)}
    judged = [judge(term, objective, views) for views in made]
    told = None if judged[0][2] is None or not trained else torch.cat([t for _, _, t in judged if t is not None])
    columns = (
        []
        if made[0].angle is not None
        else rotated(term, made[0], *judged[0][:2], None if told is None else judged[0][2])
    )
    found: dict[str, Any] = {"views": grid(run, data, made[0], columns, encoder)}
    if told is not None:
        labels = torch.cat([labels for _, labels, _ in judged])
        angles = [f"{angle:g}°" for angle in term.options.angles]
        how = f"the run's own head on {len(labels)} rotated training views"
        found["rotation"] = confusion(angles, labels, told, how)
    return found


def grid(
    run: Run, data: Data, made: Views, more: list[tuple[str, Tensor, list[str]]], encoder: LoadedEncoder
) -> dict[str, Any]:
    """One row per image: the image, its views, and `more` of them, each with its title and captions."""
    rows = made.index[:SHOWN]
    count, blank = len(rows), [""] * len(rows)
    turns = None if made.angle is None else made.angle.view(len(made.large), -1)
    columns: list[tuple[str, Tensor, list[str]]] = []
    for i, view in enumerate(made.large):
        captions = blank if turns is None else [f"{90 * k}°" for k in turns[i, :count].tolist()]
        columns.append((f"view {i + 1}", view, captions))
    columns += [(f"small {i + 1}", view, blank) for i, view in enumerate(made.small)]
    columns += [("clean", made.clean, blank)] if made.clean is not None else []
    columns += more
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (run.config.augment.mean, run.config.augment.std))
    originals, names = read(data.train.select(rows), encoder)
    side = min(96, -(-run.config.image_size // BLOCK) * BLOCK)
    tiles = [F.interpolate(originals.pixels.float(), (side, side), mode="bilinear", antialias=True)]
    for _, x, _ in columns:
        pixels = (x[:count].float().cpu() * std + mean).clamp(0, 1) * 255
        tiles.append(F.interpolate(pixels, (side, side), mode="nearest-exact"))
    labels = data.train.labels
    said = [data.train.classes[k] for k in labels[rows].tolist()] if labels is not None else blank
    return {
        "sheet": sheet(torch.cat(tiles), side),
        "rows": count,
        "columns": ["image", *(title for title, _, _ in columns)],
        "captions": [said, *(captions for _, _, captions in columns)],
        "names": [f"image {row}" for row in rows.tolist()] if isinstance(data.train, ArrayImages) else names,
    }


def rotated(
    term: Rotation, views: Views, x: Tensor, labels: Tensor, told: Tensor | None
) -> list[tuple[str, Tensor, list[str]]]:
    """Columns of rotated views, each with its angle and what the head takes it for; what is not rotated is black."""
    rows, angles, total = term.chosen(views), term.options.angles, len(views.index)
    columns = []
    for i, part in enumerate(x.split(len(rows))):
        tiles, captions = part.new_full((total, *part.shape[1:]), -10.0), [""] * total
        tiles[rows] = part
        for k, row in enumerate(rows.tolist()):
            place = i * len(rows) + k
            captions[row] = f"{angles[labels[place]]:g}°"
            if told is not None:
                right = bool(told[place] == labels[place])
                captions[row] += " ✓" if right else f" ✗ {angles[told[place]]:g}°"
        columns.append((f"rotated {i + 1}", tiles, captions[:SHOWN]))
    return columns


def turned_probe(encoder: LoadedEncoder, sample: Sample) -> dict[str, Any] | None:
    """A linear probe of quarter turns, where there is no head: fitted on half of some images, read on the others."""
    few = sample.images.select(torch.arange(min(TURNED, len(sample.images))))
    if len(few) < FEWEST:
        return None
    h = torch.stack([extract(encoder, few, f"report: turned by {90 * k}°", k).h for k in range(4)])  # 4×N×D
    half, turns = len(few) // 2, torch.arange(4)[:, None].expand(4, len(few))
    model = LogisticRegression(C=0.1, max_iter=200)
    model.fit(h[:, :half].flatten(0, 1).numpy(), turns[:, :half].flatten().numpy())
    told = torch.from_numpy(model.predict(h[:, half:].flatten(0, 1).numpy()))
    how = f"a quick linear probe on turned images, as the run has no head to ask: fitted on {half}, read on the others"
    return confusion([f"{90 * k}°" for k in range(4)], turns[:, half:].flatten(), told, how)


def confusion(labels: list[str], truth: Tensor, told: Tensor, how: str) -> dict[str, Any]:
    """What is taken for what, and how that was found out."""
    accuracy = 100 * float((truth == told).float().mean())
    return {"labels": labels, "cells": cells(truth, told), "accuracy": accuracy, "how": how}
