"""Everything that describes a run, as frozen dataclasses.

A field of `Config` is a flag of `effssl pretrain` and a key of `config.yaml`: `--views.rotated.size 0.5` is

    views: {rotated: {size: 0.5}}

Values come from these defaults, then the recipe, then `--config FILE`, then flags. This module does not import torch.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Annotated, Literal

from effssl.augment.options import Augment, ViewGroups
from effssl.network.options import LARGEST_SIDE, Projector, ReadoutOptions
from effssl.objectives.options import DEFAULT_OBJECTIVE, TERMS
from effssl.runtime.errors import RequestError
from effssl.schema import Between, Count, NonNegative, Positive, Seed, Share, flatten, to_dict


@dataclass(frozen=True)
class Optimizer:
    """The optimizer of all weights: those of the network and those of the terms."""

    name: Literal["sgd", "lars", "adamw", "muon"] = "sgd"
    """sgd decays all parameters; lars leaves biases and norms out of adaptation and decay, adamw out of decay; muon
    orthogonalizes updates of weights and leaves biases, norms, embeddings, thin weights and output layers of terms to
    adamw, without decay"""
    momentum: Share = 0.9
    weight_decay: NonNegative = 1e-4
    nesterov: bool = False
    trust: NonNegative = 0.001
    """lars: trust coefficient η, the norm of a step relative to the norm of the weights"""
    trust_clip: bool = False
    """lars: never step further than plain SGD would"""
    betas: Annotated[tuple[float, float], Between(0, 0.99999)] = (0.9, 0.999)
    """adamw: decay rates of the running means of the gradient and of its square"""
    adamw_lr: Annotated[float, Between(1e-12)] = 0.002
    """muon: peak learning rate of the parameters that adamw updates; scaled with the batch size as lr is"""
    clip_norm: NonNegative = 0.0
    """maximum norm of the gradient; 0 is off"""
    layer_decay: Annotated[float, Between(1e-6, 1)] = 1.0
    """factor on lr per stage of the encoder, counted from its last: that learns at lr times this, the one before at lr
    times its square"""


@dataclass(frozen=True)
class Schedule:
    """What changes over the run: learning rate (linear warm-up, then cosine or milestones) and side of the views."""

    warmup_epochs: NonNegative = 10.0
    """epochs of linear warm-up; a tenth of a run that `--epochs` made shorter than its recipe, if that is less"""
    warmup_from: NonNegative = 0.0
    """learning rate of the first step, as a share of lr"""
    final: NonNegative = 0.0
    """learning rate after the last step, as a share of lr"""
    milestones: Annotated[tuple[float, ...], Between(0, 1)] = ()
    """shares of the run after which lr is multiplied by `factor`, in place of the cosine"""
    factor: Share = 0.2
    restarts: Annotated[tuple[int, ...], Between(1)] = ()
    """epochs after which the schedule starts anew; a run that is trained longer restarts where it had ended"""
    grow_from: Annotated[float, Between(1e-3, 1)] = 1.0
    """side of the first views as a share of the image size; views then grow with the run, and early steps are cheap"""
    grow_until: Share = 0.5
    """share of the run after which views have their full size"""
    grow: Literal["steadily", "at_once"] = "steadily"
    """in steps of four pixels up to that point, or all at once there"""


@dataclass(frozen=True)
class Health:
    """What is measured while training, on a fixed validation split of the training images."""

    every: Count = 0
    """epochs between two evaluations; 0 is about ten evaluations per run"""
    bank: Positive = 10_000
    """training images in the memory bank of the kNN, at most"""
    queries: Positive = 5_000
    """validation images that are classified, at most"""
    snr: bool = False
    """log the gradient's signal-to-noise ratio"""
    snr_beta: Share = 0.99
    """decay of its running averages"""


@dataclass(frozen=True)
class Config:
    """One pretraining run. The complete type, with a field for the options of each term, is `config_type()`."""

    data: str = ""
    """cifar10, cifar100, digits, a folder, table (.csv) or archive (.zip, .tar) of images, or a .npy/.npz file;
    given several times, several sets, each perhaps with a weight: --data photos --data "2*scans" """
    objective: str = DEFAULT_OBJECTIVE
    """a weighted sum of terms, e.g. simclr+rotation or "simsiam + 0.2*rotation" """
    encoder: str = "small"
    """small, tiny, small-32 (wider), resnet18, resnet50, any torchvision classifier, timm:<name>, or patches"""
    start_from: str = ""
    """weights to start from: a run folder, a weight file, torchvision:<name> or timm:<name> (pretrained)"""
    start_projector: bool = False
    """also start from the projector of that run, if it fits"""
    start_digest: str = ""
    """digest of these weights; the run fills it in, and other weights of that name are refused later"""
    freeze: Count = 0
    """number of first stages of the encoder that stay as they are (1 stem, 2 first block …)"""
    recipe: str = "auto"
    """a recipe's name or a YAML file; auto chooses by the data, the objective, the encoder and the device"""
    epochs: Positive = 100
    """passes over the training images; with --start-from, a quarter of the recipe's unless given"""
    budget: str = ""
    """time for the run, e.g. 10m or 2h, in place of epochs; it also chooses the image size of photographs"""
    batch_size: Annotated[int, Between(2)] = 128
    """images per step, over all processes"""
    image_size: Annotated[int, Between(0, LARGEST_SIDE)] = 0
    """side of a view in pixels; 0 is the size of small images, 64 for a folder of photographs"""
    lr: Annotated[float, Between(1e-12)] = 0.1
    """peak learning rate; a recipe's holds for its batch size and is scaled with it, a given one is not"""
    seed: Seed = 0
    """of weights, order of images and views"""
    device: str = "auto"
    """auto, cpu, cuda, mps"""
    precision: Literal["float32", "bf16", "fp16", "auto"] = "float32"
    """auto tries some steps on this machine: bf16 if it is faster than float32 and their gradients agree"""
    compile: bool = False
    """compile the encoder and the color changes: the first steps take a minute, later ones less time"""
    workers: Annotated[int, Between(-1, 1024)] = -1
    """processes that decode images of a folder; −1 is one per usable core"""
    cache: str = "auto"
    """off, auto or a folder: decoded images are kept there, so that a file is not decoded in every epoch; auto keeps
    them in the data folder if decoding takes long and half of the disk's free space is enough"""
    labels: Literal["auto", "folders", "none"] = "auto"
    """folders: sub-folders are labels; none: no labels; auto: folders if there is train/ beside val/ or test/"""
    classes: str = ""
    """read only these class folders: imagenet100, or a text file with their names"""
    subset: Count = 0
    """size of a fixed random subset of the training images; 0 is all"""
    stem: Literal["auto", "small", "large", "pca", "kmeans"] = "auto"
    """ResNet's first layers: small is 3×3 without pooling (auto up to 64 pixels), large is 7×7 with pooling; for tiny
    and small: pca or kmeans computes the first filters from patches of the training images"""
    train_stem: bool = False
    """also train the filters of a pca or kmeans stem; otherwise they stay as computed"""
    whiten: Literal["on", "off"] = "off"
    """whiten the features of the finished encoder (label-free); it becomes part of the encoder file and of exports"""
    ema: Annotated[float, Between(0, 0.99999)] = 0.0
    """evaluate, and finish with, an exponential moving average of the weights with this decay, e.g. 0.999; 0 is off"""
    checkpoint_every: Count = 0
    """steps between checkpoints; 0 is once an epoch"""
    accumulate: Positive = 1
    """number of micro-batches that a batch is split into, to save memory; batch norm, and terms that compare images,
    then see one micro-batch at a time"""
    views: ViewGroups = field(default_factory=ViewGroups)
    augment: Augment = field(default_factory=Augment)
    projector: Projector = field(default_factory=Projector)
    readout: ReadoutOptions = field(default_factory=ReadoutOptions)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    health: Health = field(default_factory=Health)


def config_type() -> type[Config]:
    """`Config` with a field for the options of every term, those registered from outside included."""
    return _with_terms(tuple((name, entry.options) for name, entry in TERMS.items()))


@functools.cache  # one class for the same terms, or equal configs would not be equal
def _with_terms(terms: tuple[tuple[str, type], ...]) -> type[Config]:
    taken = {item.name for item in dataclasses.fields(Config)} & {name for name, _ in terms}
    if taken:
        raise RequestError(f"a term cannot be called {', '.join(taken)}: that is a setting's name")
    fields = [(name, options, field(default_factory=options)) for name, options in terms]
    return dataclasses.make_dataclass("ConfigWithTerms", fields, bases=(Config,), frozen=True)


MACHINE_FIELDS = frozenset({"device", "workers", "cache", "checkpoint_every", "augment.pixels.shown"})
"""Fields that a resumed run may change: the result does not depend on them."""


def differences(old: Config, new: Config) -> list[str]:
    """What differs between two configs and matters for the result, one line each."""
    a, b = flatten(to_dict(old)), flatten(to_dict(new))
    keys = [key for key in a | b if key not in MACHINE_FIELDS and a.get(key) != b.get(key)]
    return [f"{key}: {a.get(key)} → {b.get(key)}" for key in keys]
