"""Average precision of boxes by the rules of PASCAL VOC 2007. Everingham et al. 2010."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.ops import box_iou

from effssl.data.voc import CLASSES, VocImage

THRESHOLDS = tuple(percent / 100 for percent in range(50, 100, 5))
POINTS = 10  # recall in tenths: eleven points from 0 to 1


@dataclass(frozen=True, eq=False)
class Detections:
    """Predicted boxes of all images, in any order."""

    image: Tensor  # N long: row in the list of images
    label: Tensor  # N long: index into CLASSES
    score: Tensor  # N
    box: Tensor  # N×4: x1, y1, x2, y2 as edges, like VocImage.boxes


@dataclass(frozen=True)
class AveragePrecision:
    """AP in percent, over the classes that the images show."""

    ap: float  # mean over IoU 0.50, 0.55, … 0.95 and classes
    ap50: float
    ap75: float
    ap50_per_class: dict[str, float]


def voc_ap(found: Detections, images: Sequence[VocImage]) -> AveragePrecision:
    """AP of detections on images, by the VOC 2007 rules at ten IoU thresholds."""
    table = 100 * ap_table(found, images, THRESHOLDS)  # classes×thresholds
    shown = ~table[:, 0].isnan()
    by_threshold = table[shown].mean(0)
    at50 = {name: float(ap) for name, ap in zip(CLASSES, table[:, 0], strict=True) if not ap.isnan()}
    ap50, ap75 = by_threshold[THRESHOLDS.index(0.5)], by_threshold[THRESHOLDS.index(0.75)]
    return AveragePrecision(float(by_threshold.mean()), float(ap50), float(ap75), at50)


def ap_table(found: Detections, images: Sequence[VocImage], thresholds: Sequence[float]) -> Tensor:
    """AP in [0, 1] for each class and IoU threshold; NaN for classes without an object to find."""
    found = _by_score(found)
    truth_label = torch.cat([image.labels for image in images])
    difficult = torch.cat([image.difficult for image in images])
    overlap, truth = nearest_truths(found, images)
    table = torch.full((len(CLASSES), len(thresholds)), torch.nan, dtype=torch.double)
    for label in range(len(CLASSES)):
        objects = int(((truth_label == label) & ~difficult).sum())
        if not objects:
            continue
        rows = (found.label == label).nonzero().flatten()
        for column, threshold in enumerate(thresholds):
            hit = overlap[rows] > threshold
            ignored = hit & difficult[truth[rows]]
            right = _first_of_each(truth[rows], hit & ~ignored, len(truth_label))
            table[label, column] = eleven_point_ap(right[~ignored], objects)
    return table


def nearest_truths(found: Detections, images: Sequence[VocImage]) -> tuple[Tensor, Tensor]:
    """For each detection the largest IoU with an object of its class in its image, and that object's index.

    VOC adds a pixel to widths and heights since its corners are pixels, the last one included; between edges, which
    boxes are here, the plain IoU is the same number. Without such an object IoU is −1 and the index is undefined.
    """
    overlap = torch.full((len(found.score),), -1.0, dtype=torch.double)
    truth = torch.zeros(len(found.score), dtype=torch.long)
    order = found.image.argsort(stable=True)
    counts = found.image.bincount(minlength=len(images)).tolist()
    first = 0
    for image, rows in zip(images, order.split(counts), strict=True):
        if len(rows) and len(image.labels):
            iou = box_iou(found.box[rows].double(), image.boxes.double())  # detections×objects
            iou[found.label[rows, None] != image.labels] = -1
            best = iou.max(1)
            overlap[rows], truth[rows] = best.values, first + best.indices
        first += len(image.labels)
    return overlap, truth


def eleven_point_ap(right: Tensor, objects: int) -> Tensor:
    """Mean over recalls 0, 0.1, … 1 of the best precision at that recall or above; `right` is sorted by score."""
    if not len(right):
        return torch.zeros((), dtype=torch.double)
    hits = right.cumsum(0)  # N
    precision = hits.double() / torch.arange(1, len(right) + 1)
    # In integers, since 3 of 10 objects is a recall of 0.3 and float steps of 0.1 say otherwise.
    reached = hits * POINTS >= torch.arange(POINTS + 1)[:, None] * objects  # 11×N
    return torch.where(reached, precision, 0.0).amax(1).mean()


def _by_score(found: Detections) -> Detections:
    order = found.score.argsort(descending=True, stable=True)
    return Detections(found.image[order], found.label[order], found.score[order], found.box[order])


def _first_of_each(truth: Tensor, candidates: Tensor, truths: int) -> Tensor:
    """Which candidates come before all others with the same object: an object is found once."""
    place = torch.arange(len(truth))
    first = torch.full((truths,), len(truth))
    first.scatter_reduce_(0, truth[candidates], place[candidates], "amin")
    return candidates & (first[truth] == place)
