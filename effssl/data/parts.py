"""A data set from one list of images, where a split and a label of each image are known by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from effssl.data.archive import ArchiveImages
from effssl.data.dataset import Data
from effssl.data.folder import TEST_NAMES, VALIDATION_NAMES, FolderImages, keep_small
from effssl.data.images import Images
from effssl.runtime.errors import RequestError

SPLITS = {"train": "train"} | dict.fromkeys(TEST_NAMES, "test") | dict.fromkeys(VALIDATION_NAMES, "val")
EncodedImages = FolderImages | ArchiveImages


def divide(
    name: str,
    images: EncodedImages,
    labels: Sequence[str] | None,
    splits: Sequence[str] | None,
    unreadable: list[str],
) -> Data:
    """Divide images by their splits, which are keys of SPLITS, and number their labels as train has them.

    With both, scores are reported on test and settings are chosen on val, as of a folder.
    """
    parts = {part: torch.arange(0) for part in SPLITS.values()}
    if splits is None:
        parts["train"] = torch.arange(len(images))
    else:
        of_image = [SPLITS[split] for split in splits]
        parts = {part: _rows_of(part, of_image) for part in parts}
    if not len(parts["train"]):
        raise RequestError(f"{name} has no training images that can be read")
    classes = sort_names({labels[row] for row in parts["train"].tolist()}) if labels is not None else []

    def part(rows: Tensor) -> Images | None:
        if not len(rows):
            return None
        chosen = images.select(rows)
        if labels is not None:
            named = [labels[row] for row in rows.tolist()]
            chosen = replace(chosen, labels=_numbers(name, named, classes), classes=classes)
        return keep_small(chosen, unreadable)

    train, test, val = part(parts["train"]), part(parts["test"]), part(parts["val"])
    assert train is not None
    if test is None:
        test, val = val, None
    return Data(name, train, test, val if labels is not None else None, unreadable)


def sort_names(names: set[str]) -> list[str]:
    """Names of classes in order; numbers in that of their values.

    >>> sort_names({"10", "9"}), sort_names({"b", "a"})
    (['9', '10'], ['a', 'b'])
    """
    numbers = all(name.isascii() and name.isdigit() for name in names)
    return sorted(names, key=lambda name: (int(name) if numbers else 0, name))


def _rows_of(part: str, of_image: Sequence[str]) -> Tensor:
    return torch.tensor([row for row, other in enumerate(of_image) if other == part], dtype=torch.long)


def _numbers(name: str, named: Sequence[str], classes: Sequence[str]) -> Tensor:
    position = {label: number for number, label in enumerate(classes)}
    unknown = next((label for label in named if label not in position), None)
    if unknown is not None:
        raise RequestError(f"{name}: the test label {unknown!r} is not among the training labels")
    return torch.tensor([position[label] for label in named])
