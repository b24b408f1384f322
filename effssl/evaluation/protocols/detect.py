"""AP of Faster R-CNN with a feature pyramid on the encoder, on a folder in VOC layout.

Ren et al. 2015, Lin et al. 2017.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.ops import FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool
from torchvision.transforms.functional import pil_to_tensor

from effssl.data.image_files import opened
from effssl.data.voc import CLASSES, VocImage, fingerprint, read_voc
from effssl.evaluation.protocol import EvaluationProtocol, LearningRate
from effssl.evaluation.score import Score
from effssl.evaluation.voc import Detections, voc_ap
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.cores import usable_cores
from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.progress import progress_bar
from effssl.runtime.randomness import generator, seed_of, seeded
from effssl.schedules import linear_warmup, step_decay
from effssl.schema import Between, Count, Positive, Seed

STEM = ("conv1", "bn1", "relu", "maxpool")
BLOCKS = ("layer1", "layer2", "layer3", "layer4")
FROZEN = {"finetune": (), "frozen": (*STEM, *BLOCKS[:3]), "frozen-all": (*STEM, *BLOCKS)}  # what is not trained
STEPS, MILESTONES, FACTOR, WARMUP = 144_000, (96_000, 128_000), 0.1, 100
MOMENTUM, WEIGHT_DECAY, FLIP = 0.9, 1e-4, 0.5
FULL_SIDE, FULL_LONG_SIDE = 800, 1333
TRAIN_SIDES = range(480, FULL_SIDE + 1, 32)  # short sides of training images, one of them at random
PYRAMID = 256  # channels
ANCHOR = 8  # strides; on an ordinary ResNet 32, 64, 128, 256 and 512 pixels
PROBE_SIDE = 128  # pixels of the image whose feature maps tell the strides


@dataclass(frozen=True)
class DetectOptions:
    """Options of detection."""

    mode: Literal["frozen", "frozen-all", "finetune"] = "frozen"
    """frozen: of the encoder only its last block is trained (stem to res4 are frozen, as in the code that the paper
    used); frozen-all: nothing of it; finetune: all of it"""
    schedule: Annotated[float, Between(1e-12)] = 1.0
    """length of training as a share of 144,000 steps; warm-up and decay of the learning rate scale with it"""
    short_side: Annotated[int, Between(32)] = 800
    """of test images; training images have 0.6 to 1.0 times this"""
    batch: Positive = 2
    proposals: Annotated[int, Between(4)] = 512
    """proposals per image that the second stage is trained on; fewer are cheaper"""
    lr: LearningRate = 0.0025
    train: str = "trainval"
    """comma-separated image lists in ImageSets/Main, of all VOC years in the folder"""
    test: str = "test"
    """comma-separated image lists to evaluate on"""
    limit: Count = 0
    """use only so many images of each list; 0 is all"""
    seed: Seed = 0


@dataclass(frozen=True)
class DetectionSchedule:
    """The learning rate of each step: linear warm-up, then step decay."""

    steps: int
    milestones: tuple[int, ...]
    warmup: int

    @classmethod
    def scaled(cls, share: float) -> DetectionSchedule:
        """A share of the full schedule; warm-up keeps its length as long as it is no more than a tenth."""
        steps = max(1, round(STEPS * share))
        return cls(steps, tuple(round(milestone * share) for milestone in MILESTONES), min(WARMUP, steps // 10))

    def rate(self, step: int) -> float:
        """What the learning rate is multiplied by at a step, counted from 0."""
        warmup = min(1.0, linear_warmup(step, self.warmup + 1, 0.0, 1.0))
        return warmup * step_decay(step, self.milestones, FACTOR)


def evaluate_detect(encoder: LoadedEncoder, data: str, options: DetectOptions) -> Score:
    """AP of a detector that is trained on a copy of the encoder, on a folder in VOC layout."""
    train = [image for image in read_voc(data, options.train, options.limit) if len(image.labels)]
    test = read_voc(data, options.test, options.limit)
    if not train:
        raise RequestError(f"no image of {options.train} has a box to train on")
    if all(bool(image.difficult.all()) for image in test):
        raise RequestError(f"the images of {options.test} show no objects but difficult ones, which do not count")
    with seeded(options.seed, "detect"):
        model = build_detector(encoder, options)
    check_images([*train, *test])
    schedule = DetectionSchedule.scaled(options.schedule)
    train_detector(model, train, options, schedule)
    scores = voc_ap(find_boxes(model, test), test)
    constants = {
        "mode": options.mode, "schedule": options.schedule, "steps": schedule.steps, "lr": options.lr,
        "lr_decay": f"x{FACTOR} at {', '.join(map(str, schedule.milestones))}", "warmup_steps": schedule.warmup,
        "optimizer": "SGD", "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY, "batch": options.batch,
        "proposals": options.proposals, "short_side": options.short_side,
        "train_short_sides": train_sides(options.short_side),
        "train": options.train, "test": options.test, "limit": options.limit,
        "detector": "torchvision Faster R-CNN, FPN",
        "frozen": f"{', '.join(FROZEN[options.mode]) or 'nothing'}; batch norm fixed",
        "rule": "VOC 11-point", "classes_counted": len(scores.ap50_per_class), "seed": options.seed,
    }  # fmt: skip
    also = {"AP50": scores.ap50, "AP75": scores.ap75, "AP50_per_class": scores.ap50_per_class}
    source = {
        "data": Path(data).expanduser().resolve().name,
        "train_images": len(train), "train_fingerprint": fingerprint(train),
        "test_images": len(test), "test_fingerprint": fingerprint(test),
    }  # fmt: skip
    return Score("detect", scores.ap, "AP", constants=constants, also=also, source=source)


def train_sides(short_side: int) -> list[int]:
    """Short sides of training images for one of test images, the largest last."""
    return [round(side * short_side / FULL_SIDE) for side in TRAIN_SIDES]


def build_detector(encoder: LoadedEncoder, options: DetectOptions) -> FasterRCNN:
    """Faster R-CNN on a copy of the encoder; pyramid and heads are initialized by torch's global generator."""
    if encoder.pixels.channels != 3:
        raise RequestError(f"detection is evaluated on photographs, and this encoder takes {encoder.pixels}")
    body = resnet_body(encoder.backbone)
    for name, part in body.named_children():
        part.requires_grad_(name not in FROZEN[options.mode])
    channels, strides = _shapes(body, encoder.device)
    strides.append(2 * strides[-1])  # the pooled level on top
    backbone = BackboneWithFPN(
        body, {name: str(i) for i, name in enumerate(BLOCKS)}, channels, PYRAMID, extra_blocks=LastLevelMaxPool()
    )
    model = FasterRCNN(
        backbone,
        num_classes=1 + len(CLASSES),
        min_size=tuple(train_sides(options.short_side)),  # one at random in training; the last one in testing
        max_size=round(FULL_LONG_SIDE / FULL_SIDE * options.short_side),
        image_mean=list(encoder.about["mean"]),
        image_std=list(encoder.about["std"]),
        rpn_anchor_generator=AnchorGenerator(
            tuple((ANCHOR * stride,) for stride in strides), ((0.5, 1.0, 2.0),) * len(strides)
        ),
        box_batch_size_per_image=options.proposals,
    )
    return model.to(encoder.device)


def resnet_body(backbone: nn.Module) -> nn.Sequential:
    """A copy of the stem and the four blocks of a ResNet, its batch norms fixed."""
    parts: OrderedDict[str, Any] = OrderedDict((name, getattr(backbone, name, None)) for name in (*STEM, *BLOCKS))
    parts["relu"] = parts["relu"] or getattr(backbone, "act1", None)  # timm's name
    if not all(isinstance(part, nn.Module) for part in parts.values()):
        kind = type(backbone).__name__
        raise RequestError(f"detection needs a ResNet-like encoder with {', '.join(BLOCKS)}; {kind} is not one")
    parts = copy.deepcopy(parts)
    return _with_fixed_norms(nn.Sequential(parts))  # type: ignore[return-value]


def _with_fixed_norms(module: nn.Module) -> nn.Module:
    if isinstance(module, nn.BatchNorm2d):
        fixed = FrozenBatchNorm2d(module.num_features, module.eps)
        fixed.load_state_dict(fixed.state_dict() | module.state_dict())  # a norm without scale keeps 1 and 0
        after = getattr(module, "act", None)  # some of timm's norms hold the activation that follows
        return fixed if after is None else nn.Sequential(fixed, after)
    for name, child in module.named_children():
        setattr(module, name, _with_fixed_norms(child))
    return module


@torch.no_grad()
def _shapes(body: nn.Sequential, device: torch.device) -> tuple[list[int], list[int]]:
    """Channels and strides of the four blocks."""
    x, channels, strides = torch.zeros(1, 3, PROBE_SIDE, PROBE_SIDE, device=device), [], []
    for name, part in body.to(device).named_children():
        x = part(x)
        if name in BLOCKS:
            channels.append(x.shape[1])
            strides.append(PROBE_SIDE // x.shape[-1])
    return channels, strides


def train_detector(
    model: FasterRCNN, images: list[VocImage], options: DetectOptions, schedule: DetectionSchedule
) -> None:
    """Train in place; batches run through the images in a new order each time."""
    device = next(model.parameters()).device
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], options.lr, MOMENTUM, weight_decay=WEIGHT_DECAY
    )
    model.train()
    forked = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(forked), progress_bar("training the detector, steps", schedule.steps) as advance:
        for step, rows in enumerate(batch_rows(len(images), options.batch, schedule.steps, options.seed)):
            flips = torch.rand(len(rows), generator=generator(options.seed, "detect flip", step)) < FLIP
            pixels, targets = [], []
            for row, flip in zip(rows, flips.tolist(), strict=True):
                x, target = training_example(images[row], flip)
                pixels.append(x.to(device))
                targets.append({key: value.to(device) for key, value in target.items()})
            for group in optimizer.param_groups:
                group["lr"] = options.lr * schedule.rate(step)
            # torchvision draws short sides, anchors and proposals from the global generator.
            torch.manual_seed(seed_of(options.seed, "detect", step))
            loss = torch.stack(list(model(pixels, targets).values())).sum()
            if not loss.isfinite():
                raise RunFailed(f"the detector's loss is not finite at step {step + 1}; use a lower --lr")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            advance(1)


def batch_rows(images: int, batch: int, steps: int, seed: int) -> Iterator[list[int]]:
    """Rows of each step's images, from one permutation after another."""
    rows: list[int] = []
    epoch = 0
    for _ in range(steps):
        while len(rows) < batch:
            rows += torch.randperm(images, generator=generator(seed, "detect order", epoch)).tolist()
            epoch += 1
        yield rows[:batch]
        del rows[:batch]


def training_example(image: VocImage, flip: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """Pixels 3×H×W in [0, 1] and the target boxes and labels, flipped horizontally or not."""
    x, boxes = _pixels(image), image.boxes
    if flip:
        x, width = x.flip(-1), x.shape[-1]
        boxes = torch.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], dim=1)
    return x, {"boxes": boxes, "labels": image.labels + 1}  # 0 is the background


def check_images(images: list[VocImage]) -> None:
    """Decode every image once: a damaged one is found now, and not after hours of training."""
    files = list({image.path: image for image in images}.values())
    with ThreadPoolExecutor(usable_cores()) as pool, progress_bar("checking images", len(files)) as advance:
        for _ in pool.map(lambda image: len(_pixels(image)), files):  # pixels are not kept
            advance(1)


def _pixels(image: VocImage) -> Tensor:
    try:
        with opened(image.path) as file:
            # EXIF orientation is not applied: boxes do not know it.
            return pil_to_tensor(file.convert("RGB")).float() / 255
    except OSError as error:
        raise RequestError(f"{image.path} cannot be decoded: {error}") from None


@torch.no_grad()
def find_boxes(model: FasterRCNN, images: list[VocImage]) -> Detections:
    """Boxes of all images in their own pixels."""
    device = next(model.parameters()).device
    model.eval()
    parts = []
    with progress_bar("detecting, images", len(images)) as advance:
        for row, image in enumerate(images):
            found = {key: value.cpu() for key, value in model([_pixels(image).to(device)])[0].items()}
            here = torch.full_like(found["labels"], row)
            parts.append((here, found["labels"] - 1, found["scores"], found["boxes"]))
            advance(1)
    return Detections(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _no_default_folder() -> str:
    raise RequestError("detect needs --data, a folder in VOC layout")


PROTOCOL = EvaluationProtocol(
    "detect",
    DetectOptions,
    evaluate_detect,
    reads_folder=lambda options: True,
    default_folder=_no_default_folder,
)
