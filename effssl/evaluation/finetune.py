"""Fine-tuning a copy of the encoder, on all labels or on 1 % and 10 % of them."""

from __future__ import annotations

import copy
import hashlib
import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effssl.data import Data, Images
from effssl.data.cifar import data_folder
from effssl.data.sets import FolderImages, PackedImages
from effssl.errors import RequestError, RunFailed
from effssl.evaluation.features import extract, labelled
from effssl.evaluation.linear import crops_of
from effssl.evaluation.options import Finetune, Semi
from effssl.evaluation.score import Score
from effssl.network.loaded import LoadedEncoder
from effssl.progress import counter, say
from effssl.randomness import generator, seeded

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


def fine_tune(encoder: LoadedEncoder, train: Images, test: Images, rates: Rates) -> dict[str, float]:
    """Train a copy of the encoder (batch norm too) and a new linear layer; top-1 and top-5 on test, in percent."""
    if rates.epochs < 1 or rates.batch < 2:
        raise RequestError("fine-tuning needs at least one epoch and two images per step")
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
    with counter("fine-tuning, steps", rates.epochs * loader.steps) as advance:
        for epoch in range(rates.epochs):
            for group, lr in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = lr * FACTOR ** sum(epoch >= mark * rates.epochs for mark in MARKS)
            total = torch.zeros((), device=encoder.device)
            for views in loader.epoch(epoch):
                labels = train.labels[views.index].to(encoder.device, non_blocking=True)
                if len(labels) == 1:
                    continue  # batch norm cannot normalize a single image
                loss = F.cross_entropy(head(tuned.encoder(views.large[0])), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach()
                advance(1)
            if not math.isfinite(float(total)):
                raise RunFailed(f"the loss is not finite in epoch {epoch + 1}; lower --lr or --head-lr")
    tuned.encoder.requires_grad_(False).eval()
    features = extract(tuned, test, "test features")
    with torch.inference_mode():
        guesses = head(features.h.to(encoder.device)).cpu().topk(min(5, classes)).indices
    assert features.labels is not None
    right = guesses == features.labels[:, None]
    return {
        "top1": 100 * float(right[:, 0].float().mean()),
        **({"top5": 100 * float(right.any(1).float().mean())} if classes > 5 else {}),
    }


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
    right = fine_tune(encoder, train, test, rates)
    score = Score("finetune", right.pop("top1"), "top-1", constants_of(rates), right)
    return score.on(data.name, train=train, test=test)


def evaluate_semi(encoder: LoadedEncoder, data: Data, options: Semi) -> Score:
    """Top-1 accuracy after fine-tuning on 1 % or 10 % of the labels."""
    train, test = labelled(data, "semi")
    lr, head_lr = SEMI_RATES[options.percent]
    rates = Rates(options.epochs, options.batch, options.lr or lr, options.head_lr or head_lr, options.seed)
    rows, chosen_by = choose_labels(train, options)
    part = train.select(rows)
    right = fine_tune(encoder, part, test, rates)
    constants = {"percent": options.percent, "labels": len(rows), "chosen_by": chosen_by} | constants_of(rates)
    score = Score("semi", right.pop("top1"), "top-1", constants, right)
    return score.on(data.name, train=part, test=test)


# ---------------------------------------------------------------------------------------------------------------
# Which labels


def choose_labels(train: Images, options: Semi) -> tuple[Tensor, str]:
    """Rows of the training images whose labels are used, and in words how they were chosen."""
    imagenet = isinstance(train, (FolderImages, PackedImages)) and all(WNID.fullmatch(name) for name in train.classes)
    name, digest = LISTS[options.percent]
    path = Path(options.list).expanduser() if options.list else data_folder() / name
    if options.list or (imagenet and (path.is_file() or _download(name, digest, path))):
        if not isinstance(train, (FolderImages, PackedImages)):
            raise RequestError("a list of file names fits a folder of images only")
        return _listed(train, path, digest), f"the list {name} (sha256 checked)"
    return balanced_rows(train, options.percent / 100, options.seed), f"class-balanced choice, seed {options.seed}"


def balanced_rows(train: Images, share: float, seed: int) -> Tensor:
    """The same share of every class, at least one image of each."""
    assert train.labels is not None
    g, rows = generator(seed, "semi"), []
    for label in train.labels.unique():
        of_class = (train.labels == label).nonzero().squeeze(1)
        rows.append(of_class[torch.randperm(len(of_class), generator=g)[: max(1, round(share * len(of_class)))]])
    return torch.cat(rows).sort().values


def _listed(train: FolderImages | PackedImages, path: Path, digest: str) -> Tensor:
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
    return torch.tensor(rows)


def _download(name: str, digest: str, path: Path) -> bool:
    """Fetch a list from the SimCLR repository once; False if it cannot be had."""
    import urllib.request

    from effssl.files import write_atomically

    try:
        with urllib.request.urlopen(LIST_ADDRESS + name, timeout=10) as answer:
            content = answer.read(1 << 24)
    except OSError as error:
        say(f"{name} of the SimCLR repository cannot be fetched ({error}); labels are chosen by seed instead")
        return False
    if hashlib.sha256(content).hexdigest() != digest:
        say(f"{name} as fetched is not the published list; labels are chosen by seed instead")
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return True
