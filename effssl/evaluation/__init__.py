"""How good an encoder is: it is frozen, it is in eval mode, and that is asserted."""

from __future__ import annotations

import importlib
from typing import Any

from effssl.data import Data
from effssl.errors import RequestError, did_you_mean
from effssl.evaluation.features import Features, extract
from effssl.evaluation.score import Score
from effssl.network.loaded import LoadedEncoder

__all__ = ["PROTOCOLS", "Features", "Score", "evaluate", "extract"]

PROTOCOLS = ("knn", "linear")


def evaluate(what: str, encoder: LoadedEncoder, data: Data, **settings: Any) -> Score:
    """Measure an encoder on a data set with labels by one protocol; its weights are the same before and after."""
    if what not in PROTOCOLS:
        raise RequestError(f"unknown evaluation {what!r}{did_you_mean(what, PROTOCOLS)}; known: {', '.join(PROTOCOLS)}")
    if data.train.labels is None:
        raise RequestError(f"{data.name} has no labels, which {what} needs; --data names a labelled set")
    if data.test is None or data.test.labels is None:
        raise RequestError(f"{data.name} has no labelled test images; put them in train/ and test/ sub-folders")
    before = encoder.fingerprint()
    protocol = getattr(importlib.import_module(f"effssl.evaluation.{what}"), f"evaluate_{what}")
    score: Score = protocol(encoder, data, **settings)
    assert encoder.fingerprint() == before, "an evaluation changed the encoder"
    return score.with_source(data, before)
