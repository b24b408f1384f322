"""A data set: images to train on, images to test on, and a validation split that is always the same."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from effssl.data.images import Images
from effssl.runtime.errors import RequestError
from effssl.runtime.randomness import generator

VALIDATION_SHARE = 0.1
VALIDATION_MOST = 5000  # images


@dataclass(frozen=True)
class Data:
    """Training images, test images if there are any, and the names of files that cannot be read."""

    name: str
    train: Images
    test: Images | None = None
    held_out: Images | None = None  # validation images, where they are not among the training images
    unreadable: list[str] = field(default_factory=list)

    def with_subset(self, count: int) -> Data:
        """Train on a fixed random subset of `count` images outside the validation split; test images stay."""
        rest, validation = validation_split(self.train)
        if not 0 < count <= len(rest):
            raise RequestError(
                f"a subset of {count} images cannot be taken from {self.name}, which has {len(rest)} beside its "
                "validation split"
            )
        chosen = rest[torch.randperm(len(rest), generator=generator(0, "subset"))[:count].sort().values]
        return replace(self, train=self.train.select(chosen), held_out=self.train.select(validation))

    def validation(self) -> tuple[Images, Images]:
        """Images to fit on and images to choose settings by; test images are not used.

        Pretraining itself uses all training images. Terms that use labels see those of the validation images too,
        unless the run has a subset, which is disjoint from them; a run says so.
        """
        if self.held_out is not None:
            return self.train, self.held_out
        fit, validation = validation_split(self.train)
        return self.train.select(fit), self.train.select(validation)


def validation_split(images: Images) -> tuple[Tensor, Tensor]:
    """Split training images into (train rows, validation rows), always the same.

    The validation split is a tenth of the images (CIFAR-10: 5,000), stratified by class. All settings (λ, a learning
    rate, an encoder) are chosen on it, so that test images are read once per reported number.
    """
    total = len(images)
    count = min(VALIDATION_MOST, max(1, int(total * VALIDATION_SHARE)))
    order = torch.randperm(total, generator=generator(0, "validation"))
    if images.labels is not None:
        # Order the shuffled images by their quantile within the class: the first `count` are an equal share of each.
        labels = images.labels[order]
        rank = torch.zeros(total)
        for label in labels.unique():
            rows = (labels == label).nonzero().squeeze(1)
            rank[rows] = (torch.arange(len(rows)) + 0.5) / len(rows)
        order = order[rank.argsort(stable=True)]
    return order[count:].sort().values, order[:count].sort().values
