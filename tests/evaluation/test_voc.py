"""The VOC rule for detections, against a naive loop and by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from effssl.data.voc import CLASSES, VocImage
from effssl.evaluation.voc import THRESHOLDS, Detections, ap_table, eleven_point_ap, voc_ap
from effssl.runtime.randomness import generator

CAT, DOG = CLASSES.index("cat"), CLASSES.index("dog")


def truth(boxes: list, labels: list, difficult: list | None = None) -> VocImage:
    flags = torch.tensor(difficult or [False] * len(labels), dtype=torch.bool)
    box = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    return VocImage(Path("none.jpg"), box, torch.tensor(labels, dtype=torch.long), flags)


def found(rows: list[tuple[int, int, float, list]]) -> Detections:
    image, label, score, box = zip(*rows, strict=True)
    return Detections(torch.tensor(image), torch.tensor(label), torch.tensor(score), torch.tensor(box).float())


def naive_ap(dets: Detections, images: list[VocImage], label: int, threshold: float) -> float:
    """The rule as the VOC development kit describes it, in pixels counted from 1, one detection after another."""
    taken = [[False] * len(image.labels) for image in images]
    objects = sum(int(((image.labels == label) & ~image.difficult).sum()) for image in images)
    tp = fp = 0
    curve = []
    for n in sorted(range(len(dets.score)), key=lambda n: -float(dets.score[n])):
        if dets.label[n] != label:
            continue
        number = int(dets.image[n])
        x1, y1, x2, y2 = (dets.box[n].double() + torch.tensor([1, 1, 0, 0])).tolist()
        best, which = -1.0, -1
        for k, box in enumerate((images[number].boxes.double() + torch.tensor([1, 1, 0, 0])).tolist()):
            if images[number].labels[k] != label:
                continue
            w = max(0.0, min(x2, box[2]) - max(x1, box[0]) + 1)
            h = max(0.0, min(y2, box[3]) - max(y1, box[1]) + 1)
            union = (x2 - x1 + 1) * (y2 - y1 + 1) + (box[2] - box[0] + 1) * (box[3] - box[1] + 1) - w * h
            if w * h / union > best:
                best, which = w * h / union, k
        if best > threshold and images[number].difficult[which]:
            continue
        if best > threshold and not taken[number][which]:
            taken[number][which] = True
            tp += 1
        else:
            fp += 1
        curve.append((tp / objects, tp / (tp + fp)))
    points = [max((p for r, p in curve if r >= t / 10 - 1e-12), default=0.0) for t in range(11)]
    return sum(points) / 11


def random_scene(seed: int) -> tuple[Detections, list[VocImage]]:
    """Thirty images with objects of three classes, some difficult, and detections near and away from them."""
    g = generator(seed, "scene")

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=g)

    images, rows = [], []
    for number in range(30):
        n = int(torch.randint(0, 5, (1,), generator=g))
        corner, size = uniform(0, 60, n, 2), uniform(10, 60, n, 2)
        boxes = torch.cat([corner, corner + size], 1)
        labels, difficult = torch.randint(3, (n,), generator=g), torch.rand(n, generator=g) < 0.2
        images.append(truth(boxes.tolist(), labels.tolist(), difficult.tolist()))
        for k in range(n):
            for shift in (2.0, 6.0, 15.0):
                label = int(labels[k]) if torch.rand(1, generator=g) < 0.8 else 1
                box = boxes[k] + uniform(-shift, shift, 4)
                rows.append((number, label, float(uniform(0, 1, 1)), box.tolist()))
        corner = uniform(0, 60, 2)
        rows.append((number, 2, float(uniform(0, 1, 1)), [*corner.tolist(), *(corner + 30).tolist()]))
    return found(rows), images


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ap_equals_a_naive_loop(seed: int) -> None:
    dets, images = random_scene(seed)
    table = ap_table(dets, images, THRESHOLDS)
    assert len(set(dets.score.tolist())) == len(dets.score)  # no ties
    for label in range(3):
        expected = [naive_ap(dets, images, label, threshold) for threshold in THRESHOLDS]
        assert table[label].tolist() == pytest.approx(expected, abs=1e-9)
        assert 0.1 < expected[0] < 1
        assert expected[0] > expected[-1]
    assert table[3:].isnan().all()
    scores = voc_ap(dets, images)
    assert scores.ap == pytest.approx(100 * float(table[:3].mean()))
    assert scores.ap75 == pytest.approx(100 * float(table[:3, 5].mean()))
    assert list(scores.ap50_per_class) == list(CLASSES[:3])


def test_perfect_detections_score_100_and_absent_classes_do_not_count() -> None:
    _, images = random_scene(3)
    rows = [
        (n, int(label), 0.5 + 0.001 * n, box.tolist())
        for n, image in enumerate(images)
        for box, label in zip(image.boxes, image.labels, strict=True)
    ]
    scores = voc_ap(found([*rows, (0, DOG, 0.9, [0, 0, 9, 9])]), images)  # no dog anywhere: not an error of 3 classes
    assert (scores.ap, scores.ap50, scores.ap75) == pytest.approx((100, 100, 100))
    assert len(scores.ap50_per_class) == 3


def test_eleven_points_by_hand() -> None:
    """Right, wrong, right of two objects: precision 1 up to recall 0.5 (six points), 2/3 above (five points)."""
    assert float(eleven_point_ap(torch.tensor([True, False, True]), 2)) == pytest.approx((6 + 5 * 2 / 3) / 11)
    # Three of ten: recall 0.3 is reached, so four points count.
    assert float(eleven_point_ap(torch.tensor([True, True, True]), 10)) == pytest.approx(4 / 11)
    images = [truth([[0, 0, 10, 10], [50, 50, 80, 80]], [CAT, CAT])]
    dets = found([(0, CAT, 0.9, [0, 0, 10, 9]), (0, CAT, 0.8, [20, 20, 40, 40]), (0, CAT, 0.7, [50, 50, 80, 79])])
    assert voc_ap(dets, images).ap50 == pytest.approx(100 * (6 + 5 * 2 / 3) / 11)


def test_a_second_detection_of_an_object_is_wrong() -> None:
    images = [truth([[0, 0, 10, 10], [50, 50, 80, 80]], [CAT, CAT])]
    twice = found([(0, CAT, 0.9, [0, 0, 10, 10]), (0, CAT, 0.8, [0, 0, 10, 9]), (0, CAT, 0.7, [50, 50, 80, 80])])
    assert voc_ap(twice, images).ap50 == pytest.approx(100 * (6 + 5 * 2 / 3) / 11)


def test_difficult_objects_are_neither_right_nor_wrong() -> None:
    images = [truth([[0, 0, 10, 10], [50, 50, 80, 80]], [CAT, CAT], [True, False])]
    dets = found([(0, CAT, 0.9, [0, 0, 10, 10]), (0, CAT, 0.8, [0, 0, 10, 9]), (0, CAT, 0.7, [50, 50, 80, 80])])
    assert voc_ap(dets, images).ap50 == pytest.approx(100)
    assert voc_ap(replace(dets, box=dets.box + 30), images).ap50 == 0
    only_difficult = [*images, truth([[0, 0, 5, 5]], [DOG], [True])]
    assert list(voc_ap(dets, only_difficult).ap50_per_class) == ["cat"]


def test_another_class_or_image_is_wrong_and_nothing_found_is_0() -> None:
    images = [truth([[0, 0, 10, 10]], [CAT]), truth([], [])]
    assert voc_ap(found([(0, DOG, 0.9, [0, 0, 10, 10])]), images).ap50 == 0
    assert voc_ap(found([(1, CAT, 0.9, [0, 0, 10, 10])]), images).ap50 == 0
    right_second = found([(1, CAT, 0.9, [0, 0, 10, 10]), (0, CAT, 0.8, [0, 0, 10, 10])])
    assert voc_ap(right_second, images).ap50 == pytest.approx(50)
