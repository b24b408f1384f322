"""Fine-tuning a copy of the encoder, on all labels or on 1 % and 10 % of them."""

from __future__ import annotations

import copy
import hashlib
import math
import re
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effssl.data import Data, Images
from effssl.data.cifar import data_folder
from effssl.data.sets import FolderImages, PackedImages
from effssl.evaluation.linear import crops_of
from effssl.evaluation.options import Finetune, Semi
from effssl.evaluation.score import Score
from effssl.features.extract import extract, labelled
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.progress import counter, say
from effssl.runtime.randomness import generator, seed_of, seeded

MARKS, FACTOR = (0.6, 0.8), 0.2  # epochs 12 and 16 of 20
SEMI_RATES = {1: (0.02, 5.0), 10: (0.01, 0.2)}  # encoder, linear layer
LISTS = {
    1: ("1percent.txt", "71e82a48ba78252683ae334c4d019ebd5c6e855b9599c1389fbe83eb9549cf17"),
    10: ("10percent.txt", "6d09de11e7bdaf5b1f3b1f249b6183695f97310cdd20f0c03e7235b6b9392091"),
}
LIST_ADDRESS = "https://raw.githubusercontent.com/google-research/simclr/master/imagenet_subsets/"
WNID = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class Rates:
    """Length and learning rates of a fine-tuning."""

    epochs: int
    batch: int
    lr: float
    head_lr: float
    seed: int


@dataclass(frozen=True)
class Tuned:
    """What a fine-tuning gave: figures in percent, and which images could be read."""

    top1: float
    more: dict[str, float]  # top5, where there are more than five classes
    train_rows: Tensor
    test_rows: Tensor


def fine_tune(encoder: LoadedEncoder, train: Images, test: Images, rates: Rates) -> Tuned:
    """Train a copy of the encoder (batch norm too) and a new linear layer; top-1 and top-5 on test."""
    tuned, classes = copy.deepcopy(encoder), len(train.classes)
    tuned.encoder.requires_grad_(True).train()
    with seeded(rates.seed, "fine-tuning"):
        head = nn.Linear(encoder.dim, classes).to(encoder.device)
    groups = [
        {"params": list(tuned.encoder.parameters()), "lr": rates.lr},
        {"params": list(head.parameters()), "lr": rates.head_lr},
    ]
    optimizer = torch.optim.SGD(groups, rates.lr, momentum=0.9)
    base = [group["lr"] for group in optimizer.param_groups]
    loader = crops_of(tuned, train, min(rates.batch, len(train)), rates.seed)
    assert train.labels is not None
    seen = torch.zeros(len(train), dtype=torch.bool)
    forked = [encoder.device] if encoder.device.type == "cuda" else []
    with torch.random.fork_rng(forked), counter("fine-tuning, steps", rates.epochs * loader.steps) as advance:
        for epoch in range(rates.epochs):
            for group, lr in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = lr * FACTOR ** sum(epoch >= mark * rates.epochs for mark in MARKS)
            total = torch.zeros((), device=encoder.device)
            for views in loader.epoch(epoch):
                labels = train.labels[views.index].to(encoder.device, non_blocking=True)
                seen[views.index] = True
                advance(1)
                if len(labels) == 1:
                    continue  # batch norm cannot normalize a single image
                # Dropout draws from the global generator.
                torch.manual_seed(seed_of(rates.seed, "fine-tuning", views.step))
                loss = F.cross_entropy(head(tuned.encoder(views.large[0])), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach()
            if not math.isfinite(float(total)):
                raise RunFailed(f"the loss is not finite in epoch {epoch + 1}; lower --lr or --head-lr")
    tuned.encoder.requires_grad_(False).eval()
    features = extract(tuned, test, "test features")
    with torch.inference_mode():
        guesses = head(features.h.to(encoder.device)).cpu().topk(min(5, classes)).indices
    assert features.labels is not None
    right = guesses == features.labels[:, None]
    top1, top5 = (100 * float(part.float().mean()) for part in (right[:, 0], right.any(1)))
    return Tuned(top1, {"top5": top5} if classes > 5 else {}, seen.nonzero().squeeze(1), features.rows)


def constants_of(rates: Rates) -> dict:
    """What was fixed, in words."""
    marks = ", ".join(str(round(mark * rates.epochs)) for mark in MARKS)
    return {
        "epochs": rates.epochs, "batch": rates.batch, "optimizer": "SGD", "momentum": 0.9, "weight_decay": 0.0,
        "lr": rates.lr, "head_lr": rates.head_lr, "lr_decay": f"x{FACTOR} at {marks}", "batch_norm": "trained",
        "augmentation": "random crops and flips", "seed": rates.seed,
    }  # fmt: skip


def evaluate_finetune(encoder: LoadedEncoder, data: Data, options: Finetune) -> Score:
    """Top-1 accuracy after fine-tuning on all training labels."""
    train, test = labelled(data, "finetune")
    rates = Rates(options.epochs, options.batch, options.lr, options.head_lr, options.seed)
    tuned = fine_tune(encoder, train, test, rates)
    score = Score("finetune", tuned.top1, "top-1", constants_of(rates), tuned.more)
    return score.on(data, train=(train, tuned.train_rows), test=(test, tuned.test_rows))


def evaluate_semi(encoder: LoadedEncoder, data: Data, options: Semi) -> Score:
    """Top-1 accuracy after fine-tuning on 1 % or 10 % of the labels."""
    train, test = labelled(data, "semi")
    lr, head_lr = SEMI_RATES[options.percent]
    rates = Rates(options.epochs, options.batch, options.lr or lr, options.head_lr or head_lr, options.seed)
    rows, chosen_by = choose_labels(train, options)
    part = train.select(rows)
    tuned = fine_tune(encoder, part, test, rates)
    constants = {"percent": options.percent, "labels": len(rows), "chosen_by": chosen_by} | constants_of(rates)
    score = Score("semi", tuned.top1, "top-1", constants, tuned.more)
    return score.on(data, train=(part, tuned.train_rows), test=(test, tuned.test_rows))


# ---------------------------------------------------------------------------------------------------------------
# Which labels


def choose_labels(train: Images, options: Semi) -> tuple[Tensor, str]:
    """Rows of the training images whose labels are used, and in words how they were chosen."""
    name, digest = LISTS[options.percent]
    how = f"the list {name} (sha256 checked)"
    if options.list:
        return _listed(train, Path(options.list).expanduser(), digest), how
    if isinstance(train, (FolderImages, PackedImages)) and all(map(WNID.fullmatch, train.classes)):
        path = data_folder() / name
        try:
            if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
                _download(name, digest, path)
            return _listed(train, path, digest), how
        except (RequestError, OSError, HTTPException) as error:
            say(f"{name} of the SimCLR repository is not used ({error}); labels are chosen by seed instead")
    return balanced_rows(train, options.percent / 100, options.seed), f"class-balanced choice, seed {options.seed}"


def balanced_rows(train: Images, share: float, seed: int) -> Tensor:
    """The same share of every class, at least one image of each."""
    assert train.labels is not None
    g, rows = generator(seed, "semi"), []
    for label in train.labels.unique():
        of_class = (train.labels == label).nonzero().squeeze(1)
        rows.append(of_class[torch.randperm(len(of_class), generator=g)[: max(1, round(share * len(of_class)))]])
    return torch.cat(rows).sort().values


def _listed(train: Images, path: Path, digest: str) -> Tensor:
    """Rows of the images that a published list names."""
    if not isinstance(train, (FolderImages, PackedImages)):
        raise RequestError("a list of file names fits a folder of images only")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RequestError(f"the list {path} cannot be read: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != digest:
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


def _download(name: str, digest: str, path: Path) -> None:
    """Fetch a list from the SimCLR repository once."""
    import urllib.request

    from effssl.runtime.files import write_atomically

    with urllib.request.urlopen(LIST_ADDRESS + name, timeout=10) as answer:
        content = answer.read(1 << 24)
    if hashlib.sha256(content).hexdigest() != digest:
        raise RequestError("what was fetched is not the published list")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
