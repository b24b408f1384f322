"""Top-1 accuracy of a copy of the encoder, fine-tuned on 1 % or 10 % of the labels."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from effssl.data import Data, Images
from effssl.data.cifar import data_folder
from effssl.data.splits import pick_per_class
from effssl.evaluation.fine_tuning import FineTuning, fine_tune
from effssl.evaluation.protocol import BatchSize, EvaluationProtocol
from effssl.evaluation.score import Score
from effssl.features.extract import labelled
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import say
from effssl.runtime.randomness import generator
from effssl.runtime.reading import describe, read_bytes
from effssl.schema import NonNegative, Positive, Seed

LEARNING_RATES = {1: (0.02, 5.0), 10: (0.01, 0.2)}  # encoder, linear layer
LISTS = {
    1: ("1percent.txt", "71e82a48ba78252683ae334c4d019ebd5c6e855b9599c1389fbe83eb9549cf17"),
    10: ("10percent.txt", "6d09de11e7bdaf5b1f3b1f249b6183695f97310cdd20f0c03e7235b6b9392091"),
}
LIST_ADDRESS = "https://raw.githubusercontent.com/google-research/simclr/master/imagenet_subsets/"
LARGEST_LIST = 1 << 24  # bytes
WNID = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class SemiOptions:
    """Options of semi-supervised fine-tuning."""

    percent: Literal[1, 10] = 1
    """share of the labels that is used"""
    list: str = ""
    """file of image names (SimCLR's 1percent.txt or 10percent.txt); default: those lists for ImageNet if they can be
    downloaded, a seeded class-balanced choice otherwise"""
    epochs: Positive = 20
    batch: BatchSize = 256
    lr: NonNegative = 0.0
    """of the encoder; 0 is the protocol's: 0.02 for 1 %, 0.01 for 10 %"""
    head_lr: NonNegative = 0.0
    """of the linear layer; 0 is the protocol's: 5 for 1 %, 0.2 for 10 %"""
    seed: Seed = 0


def evaluate_semi(encoder: LoadedEncoder, data: Data, options: SemiOptions) -> Score:
    """Top-1 accuracy after fine-tuning on 1 % or 10 % of the labels."""
    train, test = labelled(data, "semi")
    lr, head_lr = LEARNING_RATES[options.percent]
    settings = FineTuning(
        options.epochs, options.batch, options.lr or lr, options.head_lr or head_lr, options.seed
    )  # fmt: skip
    rows, chosen_by = choose_labels(train, options)
    part = train.select(rows)
    tuned = fine_tune(encoder, part, test, settings)
    constants = {"percent": options.percent, "labels": len(rows), "chosen_by": chosen_by} | settings.constants()
    score = Score("semi", tuned.top1, "top-1", constants, tuned.also)
    return score.on(data, train=(part, tuned.train_rows), test=(test, tuned.test_rows))


def choose_labels(train: Images, options: SemiOptions) -> tuple[Tensor, str]:
    """Rows of the training images whose labels are used, and how they were chosen, in words."""
    name, sha256 = LISTS[options.percent]
    by_list = f"the list {name} (sha256 checked)"
    if options.list:
        return _listed_rows(train, Path(options.list).expanduser(), sha256), by_list
    if train.paths is not None and all(map(WNID.fullmatch, train.classes)):
        path = data_folder() / name
        try:
            if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
                _download_list(name, sha256, path)
            return _listed_rows(train, path, sha256), by_list
        except (RequestError, OSError, HTTPException) as error:
            say(f"{name} of the SimCLR repository is not used ({error}); labels are chosen by seed instead")
    return balanced_rows(train, options.percent / 100, options.seed), f"class-balanced choice, seed {options.seed}"


def balanced_rows(train: Images, share: float, seed: int) -> Tensor:
    """The same share of every class, at least one image of each."""
    assert train.labels is not None
    rows = pick_per_class(train.labels, lambda count: max(1, round(share * count)), generator(seed, "semi"))
    return rows.sort().values


def _listed_rows(train: Images, path: Path, sha256: str) -> Tensor:
    """Rows of the images that a published list names."""
    if train.paths is None:
        raise RequestError("a list of file names fits a folder of images only")
    try:
        content = read_bytes(path)
    except OSError as error:
        raise RequestError(f"the list {path} cannot be read: {describe(error)}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise RequestError(f"{path} is not the published list (its sha256 differs)")
    wanted = set(content.decode().split())
    rows = [i for i, file in enumerate(train.paths) if file.name in wanted]
    if not rows:
        raise RequestError(f"none of the images that {path} lists is among the training images")
    assert train.labels is not None
    bare = set(train.labels.tolist()) - set(train.labels[rows].tolist())
    if bare:
        raise RequestError(f"{path} lists no training image of {len(bare)} classes, e.g. {train.classes[min(bare)]}")
    return torch.tensor(rows)


def _download_list(name: str, sha256: str, path: Path) -> None:
    """Download a list from the SimCLR repository into the data folder."""
    import urllib.request

    from effssl.runtime.files import write_atomically

    with urllib.request.urlopen(LIST_ADDRESS + name, timeout=10) as response:
        content = response.read(LARGEST_LIST)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise RequestError("the downloaded file is not the published list")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


PROTOCOL = EvaluationProtocol("semi", SemiOptions, evaluate_semi, path_options=("list",))
