"""Do an image and a changed copy of it have the same neighbors? Needs no labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from effssl.data import Data
from effssl.data.images import Reading
from effssl.evaluation.protocol import EvaluationProtocol
from effssl.evaluation.score import Score
from effssl.features.agreement import CHANGE, MOST, NEIGHBORS, agreement, chance_agreement, image_pairs
from effssl.features.extract import extract
from effssl.features.whitening import first_images
from effssl.network.loaded import LoadedEncoder
from effssl.schema import Between, Positive

SIDE = 128  # of photographs: enough for most encoders, and few to keep in memory


@dataclass(frozen=True)
class AgreementOptions:
    """Options of the agreement of neighbors."""

    k: Positive = NEIGHBORS
    """neighbors of each image"""
    images: Annotated[int, Between(10)] = MOST
    """training images that are compared, at most"""
    side: Annotated[int, Between(8)] = SIDE
    """pixels that photographs are reduced to first, so that all encoders see the same; small images stay as they are"""


def evaluate_agreement(encoder: LoadedEncoder, data: Data, options: AgreementOptions) -> Score:
    """Share of neighbors that images and their changed copies have in common."""
    images = first_images(data.train, options.images)
    side = int(images.sizes.max()) if images.in_memory else options.side
    pairs = image_pairs(images, side, options.images, Reading(encoder.device, pixels=encoder.pixels))
    plain, changed = (extract(encoder, some, "features") for some in (pairs.plain, pairs.changed))
    constants = {
        "k": min(options.k, len(pairs) - 1),
        "images": len(pairs),
        "similarity": "cosine",
        "side": side,
        "change": f"crop of {CHANGE.scale[0]:g} to {CHANGE.scale[1]:g} of the area, flip, color jitter",
        "chance": chance_agreement(len(pairs), options.k),
        "seed": 0,
    }
    value = agreement(plain.h, changed.h, options.k)
    score = Score("agreement", value, "agreement", constants)
    return score.on(data, train=(images, plain.rows))


PROTOCOL = EvaluationProtocol("agreement", AgreementOptions, evaluate_agreement)
