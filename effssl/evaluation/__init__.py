"""How good an encoder is: it is frozen, it is in eval mode, and that is asserted."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from effssl.config import build
from effssl.data import Data, open_data
from effssl.data.cifar import data_folder
from effssl.errors import RequestError, did_you_mean
from effssl.evaluation.features import Features, extract
from effssl.evaluation.options import PROTOCOLS, WHERE
from effssl.evaluation.score import Score
from effssl.network.loaded import LoadedEncoder

if TYPE_CHECKING:
    from effssl.run import Run

__all__ = ["PROTOCOLS", "Features", "Score", "evaluate", "extract"]


def evaluate(what: str, encoder: LoadedEncoder, data: Data | str, **settings: Any) -> Score:
    """Measure an encoder by one protocol; its weights are the same before and after.

    `data` is an opened data set; for `detect`, and for `transfer` with `sets`, the path of a folder. Settings are the
    fields of the protocol's options in `effssl.evaluation.options`.
    """
    options = options_of(what, settings)
    module = importlib.import_module(f"effssl.evaluation.{WHERE.get(what, what)}")
    protocol: Callable[..., Score] = getattr(module, f"evaluate_{what.replace('-', '_')}")
    assert not encoder.training, "the encoder is not in eval mode"
    assert not any(p.requires_grad for p in encoder.parameters()), "the encoder is not frozen"
    before = encoder.fingerprint()
    score = protocol(encoder, data, options)
    assert encoder.fingerprint() == before, "an evaluation changed the encoder"
    return score.of(before)


def options_of(what: str, settings: Mapping[str, Any]) -> Any:
    """The protocol's options, complete; unknown protocols and settings are refused."""
    if what not in PROTOCOLS:
        raise RequestError(f"unknown evaluation {what!r}{did_you_mean(what, PROTOCOLS)}; known: {', '.join(PROTOCOLS)}")
    return build(PROTOCOLS[what], settings, what)


def changed_options(what: str, settings: Mapping[str, Any]) -> list[str]:
    """What was asked otherwise than the protocol's defaults, as `name=value`."""
    given, usual = options_of(what, settings), PROTOCOLS[what]()
    pairs = [(f.name, getattr(given, f.name), getattr(usual, f.name)) for f in fields(given)]
    return [f"{name}={value}" for name, value, default in pairs if value != default]


def open_source(what: str, settings: Mapping[str, Any], data: str | None, run: Run | None = None) -> Data | str:
    """What a protocol is read on: an opened data set, or the folder that some protocols read by themselves."""
    if what == "detect" or (what == "transfer" and settings.get("sets")):
        if what == "detect" and not data:
            raise RequestError("detect needs --data, a folder in VOC layout")
        return data or str(data_folder())
    if data:
        return open_data(data, run.config.labels if run else "auto")
    if run is None:
        raise RequestError("an encoder that effssl did not train needs --data")
    return run.data()
