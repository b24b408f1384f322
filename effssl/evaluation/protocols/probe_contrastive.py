"""How often the most similar view in a batch is the other view of the same image."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.augment.options import Augment, ViewGroup
from effssl.data import Data
from effssl.data.loader import Batching, ViewLoader, ViewSpec
from effssl.evaluation.probing import probe_score, probed_features, unlabelled_test_images
from effssl.evaluation.protocol import BatchSize, EvaluationProtocol
from effssl.evaluation.score import Score
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import progress_bar
from effssl.schema import Seed, build


@dataclass(frozen=True)
class ContrastiveProbeOptions:
    """Options of the contrastive probe."""

    on: Literal["both", "h", "z"] = "both"
    """which features are compared"""
    batch: BatchSize = 512
    """images per batch; chance is 1 / (2·batch − 1)"""
    seed: Seed = 0


def evaluate_probe_contrastive(encoder: LoadedEncoder, data: Data, options: ContrastiveProbeOptions) -> Score:
    """How often a view's most similar one among the other 2B − 1 of its batch is the other view of its image."""
    test = unlabelled_test_images(data, "the contrastive probe")
    if len(test) < options.batch:
        raise RequestError(
            f"a batch of {options.batch} images is larger than the {len(test)} test images; chance depends on it: "
            f"choose --batch {len(test)} or less, the same for all encoders you compare"
        )
    augment = training_augment(encoder)
    spec = ViewSpec(augment, {"large": ViewGroup(count=2)}, encoder.size)
    loader = ViewLoader(test, spec, Batching(options.batch, options.seed), encoder.device)
    probed = probed_features(encoder, options.on)
    right: dict[str, list[Tensor]] = {on: [] for on in probed}
    unread = torch.zeros(len(test), dtype=torch.bool)
    unread[loader.order(0)[: loader.steps * options.batch]] = True
    with torch.inference_mode(), progress_bar("contrastive probe, batches", loader.steps) as advance:
        for views in loader.epoch(0):
            unread[views.index] = False
            h = torch.cat([encoder.encoder(view) for view in views.pixels["large"]])  # 2B×D
            for on in probed:
                right[on].append(partner_found((encoder.project(h) if on == "z" else h).float()))
            advance(1)
    accuracy = {on: 100 * float(torch.cat(parts).float().mean()) for on, parts in right.items()}
    constants = {
        "batch": options.batch, "batches": loader.steps, "images_left_out": len(test) - loader.steps * options.batch,
        "chance": 100 / (2 * options.batch - 1), "similarity": "cosine", "seed": options.seed,
        "augmentation": {f.name: getattr(augment, f.name) for f in dataclasses.fields(augment)},
    }  # fmt: skip
    score = probe_score("probe-contrastive", accuracy, constants)
    return score.on(data, test=(test, (~unread).nonzero().squeeze(1)))


def partner_found(features: Tensor) -> Tensor:
    """For 2B views, first all first ones: is the most similar other view the partner? 2B booleans."""
    z, n = F.normalize(features, dim=1), len(features)
    similarity = (z @ z.T).fill_diagonal_(-2)
    return similarity.argmax(1) == torch.arange(n, device=z.device).roll(n // 2)


def training_augment(encoder: LoadedEncoder) -> Augment:
    """The augmentation that the encoder was trained with; SimCLR's usual one where that is not known."""
    known = encoder.about.get("augment")
    augment = build(Augment, known, "the run's augmentation") if known else Augment()
    mean, std = tuple(encoder.about["mean"]), tuple(encoder.about["std"])
    return dataclasses.replace(augment, pixels=encoder.pixels, mean=mean, std=std, saliency="")


PROTOCOL = EvaluationProtocol(
    "probe-contrastive", ContrastiveProbeOptions, evaluate_probe_contrastive, needs_projector=True
)
