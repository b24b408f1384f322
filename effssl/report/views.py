"""Training views, and the tasks of a run: examples with their labels and predictions, and a confusion matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from effssl.data import Data
from effssl.data.views import Views
from effssl.features.logistic import fit_quietly
from effssl.network.loaded import LoadedEncoder
from effssl.objectives.term import TaskExamples
from effssl.report.embedding import FEWEST, confusion
from effssl.report.replay import angle_sets
from effssl.report.sample import BLOCK, false_color, read_images, rgb_of, sheet
from effssl.run import RunFolder
from effssl.runtime.errors import RequestError

SHOWN = 8  # images whose views are shown
EXAMPLES = 24  # examples shown of each task
TILE = 96  # pixels, at most


@dataclass(frozen=True)
class Column:
    """One view of every image, with captions."""

    title: str
    pixels: Tensor  # B×C×S×S, normalized
    captions: list[str]


def view_grid(run: RunFolder, data: Data, views: Views, encoder: LoadedEncoder) -> dict[str, Any]:
    """One row per image: the image itself and its views of every group."""
    rows = views.index[:SHOWN]
    columns = view_columns(views, angle_sets(run), len(rows))
    originals, names = read_images(data.train.select(rows), encoder)
    if len(names) < len(rows):
        raise RequestError("some images of the first training step can no longer be read")
    side = _tile_side(run.config.image_size)
    tiles = [F.interpolate(rgb_of(originals, encoder).float(), (side, side), mode="bilinear", antialias=True)]
    tiles += [_tiles(column.pixels, encoder, side) for column in columns]
    labels = data.train.labels
    classes = [""] * len(rows) if labels is None else [data.train.classes[k] for k in labels[rows].tolist()]
    return {
        "sheet": sheet(torch.cat(tiles), side),
        "rows": len(rows),
        "columns": ["image", *(column.title for column in columns)],
        "captions": [classes, *(column.captions for column in columns)],
        "names": [name or f"image {row}" for name, row in zip(names, rows.tolist(), strict=True)],
    }


def view_columns(views: Views, angles: dict[str, tuple[float, ...]], count: int) -> list[Column]:
    """The views of the first `count` images by group; the captions of rotated ones are their angles."""
    columns = []
    for group, pixels in views.pixels.items():  # V×B×C×S×S
        for number, view in enumerate(pixels[:, :count]):
            captions = [""] * count
            if group in views.angles:
                captions = [f"{angles[group][k]:g}°" for k in views.angles[group][number, :count].tolist()]
            columns.append(Column(f"{group} {number + 1}", view, captions))
    if views.clean is not None:
        columns.append(Column("clean", views.clean[:count], [""] * count))
    return columns


def task_section(name: str, batches: list[TaskExamples], encoder: LoadedEncoder, trained: bool) -> dict[str, Any]:
    """Some inputs of a task with labels and, of a trained run, predictions; and what is predicted as what."""
    first = batches[0]
    predicted = first.logits.argmax(1) if trained and first.logits is not None else None
    side = _tile_side(first.pixels.shape[-1])
    found: dict[str, Any] = {
        "name": name,
        "sheet": sheet(_tiles(first.pixels[:EXAMPLES], encoder, side), side),
        "captions": captions(first, predicted)[:EXAMPLES],
        "predicted": predicted is not None,
        "confusion": None,
    }
    labels = torch.cat([some.labels for some in batches])
    logits = [some.logits for some in batches if some.logits is not None]
    if predicted is not None:
        how = f"the task's own head on {len(labels)} inputs from the first training steps"
        found["confusion"] = confusion(first.names, labels, torch.cat(logits).argmax(1), how)
    elif trained and not logits:
        found["confusion"] = probe_task(encoder, batches)
    return found


def captions(examples: TaskExamples, predicted: Tensor | None) -> list[str]:
    """The label of each example; after it ✓, or ✗ and the wrong prediction."""
    names = examples.names
    if predicted is None:
        return [names[label] for label in examples.labels.tolist()]
    pairs = zip(examples.labels.tolist(), predicted.tolist(), strict=True)
    return [f"{names[label]} ✓" if label == guess else f"{names[label]} ✗ {names[guess]}" for label, guess in pairs]


def probe_task(encoder: LoadedEncoder, batches: list[TaskExamples]) -> dict[str, Any] | None:
    """A linear probe of a task without a head: fitted on features of half of the examples, tested on the others."""
    labels = torch.cat([some.labels for some in batches])
    if len(labels) < FEWEST or len(labels[0::2].unique()) < 2:
        return None
    with torch.inference_mode():
        encoder = encoder.without_whitening()  # means over mirror images cannot tell 90° from 270°
        h = torch.cat([encoder.encoder(some.pixels.to(encoder.device)).float().cpu() for some in batches])
    model = fit_quietly(LogisticRegression(C=0.1, max_iter=200), h[0::2].numpy(), labels[0::2].numpy())
    predicted = torch.from_numpy(model.predict(h[1::2].numpy()))
    how = f"a linear probe, as this task has no head: fitted on {len(h[0::2])} inputs, tested on {len(h[1::2])} others"
    return confusion(batches[0].names, labels[1::2], predicted, how)


def _tile_side(image_size: int) -> int:
    """Side of a tile in whole JPEG blocks."""
    return min(TILE, -(-image_size // BLOCK) * BLOCK)


def _tiles(x: Tensor, encoder: LoadedEncoder, side: int) -> Tensor:
    """Normalized images N×C×S×S as RGB in 0…255, N×3×side×side."""
    return F.interpolate(false_color(x, encoder), (side, side), mode="nearest-exact")
