"""How good an encoder is: it is frozen and in eval mode, which is asserted, and evaluated by one protocol at a time."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from effssl.evaluation.catalog import find_protocol, protocol_names
from effssl.evaluation.protocol import EvaluationProtocol
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import say

if TYPE_CHECKING:
    from effssl.data import Data
    from effssl.evaluation.score import Score
    from effssl.network.loaded import LoadedEncoder

__all__ = [
    "EvaluationProtocol",
    "cheap_baselines",
    "check_baselines",
    "evaluate",
    "evaluate_baselines",
    "evaluate_beside",
    "find_protocol",
    "open_source",
    "protocol_names",
]

ACCURACIES = ("accuracy", "top-1", "mean accuracy over four rotations")
"""Metrics of classification, for which guessing reaches something."""
CHEAP = ("knn", "agreement")
"""Protocols whose baselines are evaluated unasked, where that is quick."""
FEW_IMAGES, QUICK = 12_000, 60.0  # train and test images of a kNN; seconds that the baselines may take
MOST_FITTED = 10_000  # images that a readout is computed from
QUICK_PATCHES = "patches-100"  # the filters of baselines that nobody asked for, as while training


def evaluate(what: str, encoder: LoadedEncoder, data: Data | str | Path, **settings: Any) -> Score:
    """Evaluate an encoder by one protocol; its weights are the same before and after.

    `data` is an opened data set or what `open_data` takes; for `detect`, and for `transfer` with `sets`, the path of a
    folder. Settings are the fields of the protocol's options.
    """
    from effssl.data import Data
    from effssl.network.loaded import LoadedEncoder

    protocol = find_protocol(what)
    options = protocol.options_of(settings)
    if not isinstance(encoder, LoadedEncoder):
        raise RequestError(f"an encoder is needed, as effssl.load gives it, not {type(encoder).__name__}")
    source = open_source(protocol, options, str(data)) if isinstance(data, (str, Path)) else data
    wanted: type = str if protocol.reads_folder(options) else Data
    if not isinstance(source, wanted):
        expected = "the path of a folder" if wanted is str else "a data set or its name"
        raise RequestError(f"{what} is evaluated on {expected}, not on {type(data).__name__}")
    assert not encoder.training, "the encoder is not in eval mode"
    assert not any(p.requires_grad for p in encoder.parameters()), "the encoder is not frozen"
    before = encoder.fingerprint()
    score = protocol.evaluate(encoder, source, options)
    assert encoder.fingerprint() == before, "an evaluation changed the encoder"
    _report_unreadable(score)
    return _with_chance(score, source).of(encoder)


def _with_chance(score: Score, source: Data | str | None) -> Score:
    """An accuracy with that of always saying the most frequent class, where the protocol does not state it itself."""
    from effssl.data import Data

    labels = source.test.labels if isinstance(source, Data) and source.test is not None else None
    if "chance" in score.constants or labels is None or labels.ndim > 1 or score.metric not in ACCURACIES:
        return score
    chance = 100 * float(labels.bincount().max()) / len(labels)
    return replace(score, constants=score.constants | {"chance": chance})


def evaluate_beside(
    what: str, encoder: LoadedEncoder, data: Data | str | None, baselines: bool | None, **settings: Any
) -> tuple[Score, dict[str, Score]]:
    """A score, and those of what costs nothing if they are asked for; with None, if that is quick."""
    if baselines:
        check_baselines(what, data)
    started = time.perf_counter()
    assert data is not None
    score = evaluate(what, encoder, data, **settings)
    if baselines:
        return score, evaluate_baselines(what, encoder, data, **settings)
    if baselines is None and cheap_baselines(what, encoder, data, score, time.perf_counter() - started):
        return score, evaluate_baselines(what, encoder, data, QUICK_PATCHES, **settings)
    return score, {}


def evaluate_baselines(
    what: str, encoder: LoadedEncoder, data: Data | str | None, patches: str = "patches", **settings: Any
) -> dict[str, Score]:
    """The same evaluation of what costs nothing: the untrained network, k-means patches, and pixels."""
    from effssl.data import Data
    from effssl.features.whitening import patch_encoder, pixel_encoder, untrained_encoder
    from effssl.network.foreign import open_foreign

    check_baselines(what, data)
    assert isinstance(data, Data)
    images = data.train
    encoders = {
        "untrained": untrained_encoder(images, encoder),
        patches: patch_encoder(images, encoder, patches),
        "pixels": open_foreign("pixels") if encoder.pixels.is_picture else pixel_encoder(encoder),
    }
    return {name: evaluate(what, one.to(encoder.device), data, **settings) for name, one in encoders.items()}


def cheap_baselines(what: str, encoder: LoadedEncoder, data: Data | str | None, score: Score, seconds: float) -> bool:
    """Whether baselines take little time, where the encoder took so many seconds; one that is a baseline needs none."""
    from effssl.data import Data

    if what not in CHEAP or not isinstance(data, Data) or encoder.about["encoder"].startswith(("pixels", "patches")):
        return False
    read = score.source.get("train_images", 0) + score.source.get("test_images", 0)
    fitting = 2 * min(len(data.train), MOST_FITTED) / max(1, read)  # patches, and the readout of an untrained network
    return (what != "knn" or read <= FEW_IMAGES) and seconds * (2 + fitting) <= QUICK


def check_baselines(what: str, data: Data | str | None) -> None:
    """Refuse baselines of a protocol that has none."""
    from effssl.data import Data

    if not isinstance(data, Data) or find_protocol(what).needs_projector:
        raise RequestError(f"{what} has no baselines: they are for protocols that read features of a data set")


def open_source(
    protocol: EvaluationProtocol, options: Any, data: str | None, labels: str = "auto", classes: str = ""
) -> Data | str | None:
    """What a protocol is evaluated on: a data set, or the folder that it reads itself; None where no data are given."""
    from effssl.data import open_data

    reads_folder = protocol.reads_folder(options)
    if classes and (not data or reads_folder):
        raise RequestError("--classes chooses class folders of a labelled --data")
    if reads_folder:
        return data or protocol.default_folder()
    return open_data(data, labels, classes=classes) if data is not None else None


def _report_unreadable(score: Score) -> None:
    named = score.source.get("unreadable_files")
    if named:
        count = score.source["unreadable"]
        others = f" and {count - len(named)} more" if count > len(named) else ""
        say(f"cannot be read and did not count ({count}): {', '.join(named)}{others}")
