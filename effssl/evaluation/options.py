"""What can be measured of an encoder, and what each protocol can be told: the flags of `effssl eval`. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Knn:
    """Weighted k-nearest-neighbor accuracy on frozen features."""

    k: int = 200
    """number of neighbors"""
    temperature: float = 0.1
    """of the vote exp(cosine / temperature)"""


@dataclass(frozen=True)
class Linear:
    """A linear layer on frozen features."""

    setting: Literal["cached", "simsiam", "simclr", "swav"] = "cached"
    """cached: features without augmentation (CIFAR, BYOL on ImageNet-100); the others: random crops and flips, with the
    constants of SimSiam on CIFAR, SimCLR on ImageNet-100, SwAV on ImageNet"""
    lr: tuple[float, ...] = ()
    """learning rates; of several, one is chosen on a validation split of train. Default: the setting's own"""
    epochs: int = 100
    batch: int = 0
    """images per step; 0 is the setting's own"""
    schedule: Literal["setting", "cosine"] = "setting"
    """how the learning rate falls: as the setting says, or by a cosine to 0"""
    seed: int = 0


@dataclass(frozen=True)
class Finetune:
    """Train a copy of the encoder and a new linear layer on all labels."""

    epochs: int = 20
    batch: int = 256
    lr: float = 0.01
    """of the encoder"""
    head_lr: float = 0.2
    """of the linear layer"""
    seed: int = 0


@dataclass(frozen=True)
class Semi:
    """Fine-tune a copy of the encoder on 1 % or 10 % of the labels."""

    percent: Literal[1, 10] = 1
    list: str = ""
    """file of image names (SimCLR's 1percent.txt or 10percent.txt); default: those lists for ImageNet if they can be
    had, a seeded class-balanced choice otherwise"""
    epochs: int = 20
    batch: int = 256
    lr: float = 0.0
    """of the encoder; 0 is the protocol's: 0.02 for 1 %, 0.01 for 10 %"""
    head_lr: float = 0.0
    """of the linear layer; 0 is the protocol's: 5 for 1 %, 0.2 for 10 %"""
    seed: int = 0


@dataclass(frozen=True)
class ProbeRotation:
    """How well an image's rotation can be read from h = f(x) and z = g(f(x))."""

    on: Literal["both", "h", "z"] = "both"
    hidden: int = 512
    epochs: int = 50
    batch: int = 512
    lr: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class ProbeContrastive:
    """How often the most similar view among those of a batch is the other view of the same image."""

    on: Literal["both", "h", "z"] = "both"
    batch: int = 512
    """images per batch; chance is 1 / (2·batch − 1)"""
    seed: int = 0


@dataclass(frozen=True)
class Transfer:
    """L2-regularized logistic regression on frozen features of other data sets, C chosen on validation."""

    sets: str = ""
    """comma-separated names of the 11 data sets below the folder --data, or all; default: --data is one labelled set"""
    reuse: str = ""
    """JSON file of another transfer result whose C is taken instead of choosing one"""
    imagenet: float = 0.0
    """linear accuracy on ImageNet to count in a second average, as the paper does"""
    grid: int = 45
    """values of C between 1e-5 and 1e6"""
    max_iter: int = 100
    download: bool = False
    """fetch data sets that are not below --data"""
    seed: int = 0


@dataclass(frozen=True)
class Detect:
    """Faster R-CNN with a feature pyramid on the encoder, trained and tested on a folder in VOC layout."""

    mode: Literal["frozen", "finetune"] = "frozen"
    """frozen: stem and first three blocks stay, the last block trains (the paper's frozen); finetune: all train"""
    schedule: float = 1.0
    """length of training as a share of 144,000 steps, warm-up and steps of the learning rate with it"""
    short_side: int = 800
    """of test images; training images come at 0.6 to 1.0 times this"""
    batch: int = 2
    proposals: int = 512
    """boxes per image that the second stage learns from; fewer are cheaper"""
    lr: float = 0.0025
    train: str = "trainval"
    """comma-separated image lists in ImageSets/Main, of all VOC years in the folder"""
    test: str = "test"
    limit: int = 0
    """use only so many images of each list; 0 is all"""
    seed: int = 0


@dataclass(frozen=True)
class Retrieval:
    """Rank the training images by similarity to each test image; right ones share its class."""

    recall_at: tuple[int, ...] = (1, 5, 10)


@dataclass(frozen=True)
class Clusters:
    """k-means on the features of the test images, compared with their classes."""

    clusters: int = 0
    """0 is the number of classes"""
    restarts: int = 10
    seed: int = 0


@dataclass(frozen=True)
class Robustness:
    """kNN accuracy when the test images are rotated and the training images are not."""

    k: int = 200
    temperature: float = 0.1


@dataclass(frozen=True)
class Which:
    """Where an encoder runs, and what has to be known of one that effssl did not train."""

    device: str = "auto"
    """where the encoder runs: auto, cpu, cuda, mps"""
    encoder: str = ""
    """architecture of a weight file that does not say so itself: resnet50, timm:<name>, small"""
    weights: Literal["default", "random"] = "default"
    """of an encoder that is given by name: the library's pretrained ones, or random ones"""
    image_size: int = 0
    """side of the images a foreign encoder gets; 0 is what its pretrained weights say, else 224, or 32 for small"""


@dataclass(frozen=True)
class Target(Which):
    """What every evaluation can be told beside the options of its protocol."""

    data: str = ""
    """another data set than the run's own; detect: a folder in VOC layout; transfer with --sets: where the sets are"""
    classes: str = ""
    """read only these class folders of --data: imagenet100, or a text file with their names"""
    out: str = ""
    """also write the score to this JSON file"""


PROTOCOLS: dict[str, type] = {
    "knn": Knn,
    "linear": Linear,
    "finetune": Finetune,
    "semi": Semi,
    "probe-rotation": ProbeRotation,
    "probe-contrastive": ProbeContrastive,
    "transfer": Transfer,
    "detect": Detect,
    "retrieval": Retrieval,
    "clusters": Clusters,
    "robustness": Robustness,
}
INF = float("inf")
SEED = (0, 2**32 - 1)  # NumPy takes no larger ones
LIMITS: dict[str, tuple[float, float]] = {
    "k": (1, INF), "temperature": (1e-6, INF), "epochs": (1, INF), "seed": SEED, "hidden": (1, INF),
    "lr": (1e-12, INF), "head_lr": (1e-12, INF), "semi.lr": (0, INF), "semi.head_lr": (0, INF),
    "batch": (2, INF), "linear.batch": (0, INF), "detect.batch": (1, INF),
    "grid": (1, INF), "max_iter": (1, INF), "imagenet": (0, 100),
    "schedule": (1e-12, INF), "short_side": (32, INF), "proposals": (4, INF), "limit": (0, INF),
    "recall_at": (1, INF), "clusters": (0, INF), "restarts": (1, INF),
}  # fmt: skip
"""Smallest and largest value of every number, both included, by its name or by protocol and name."""
WHERE = {
    "finetune": "finetune", "semi": "finetune", "probe-rotation": "probes", "probe-contrastive": "probes",
    "detect": "detection", "robustness": "robustness",
}  # fmt: skip
"""The module of a protocol where it has another name; its function is `evaluate_<protocol>`."""
