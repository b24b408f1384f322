"""How good an encoder is: it is frozen, it is in eval mode, and that is asserted."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from effssl.config import build
from effssl.data import Data, open_data
from effssl.data.cifar import data_folder
from effssl.evaluation.options import INF, LIMITS, PROTOCOLS, WHERE
from effssl.evaluation.score import Score
from effssl.features.extract import Features, extract
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError, did_you_mean
from effssl.runtime.files import whole_path
from effssl.runtime.progress import say

if TYPE_CHECKING:
    from effssl.run import Run

__all__ = ["PROTOCOLS", "Features", "Score", "evaluate", "extract"]


def evaluate(what: str, encoder: LoadedEncoder, data: Data | str, **settings: Any) -> Score:
    """Measure an encoder by one protocol; its weights are the same before and after.

    `data` is an opened data set or what `open_data` takes; for `detect`, and for `transfer` with `sets`, the path of a
    folder. Settings are the fields of the protocol's options in `effssl.evaluation.options`.
    """
    options = options_of(what, settings)
    if not isinstance(encoder, LoadedEncoder):
        raise RequestError(f"an encoder is needed, as effssl.load gives it, not {type(encoder).__name__}")
    if isinstance(data, (str, Path)):
        data = open_source(what, settings, str(data))
    elif not isinstance(data, Data) or reads_folder(what, settings):
        wanted = "the path of a folder" if reads_folder(what, settings) else "a data set or its name"
        raise RequestError(f"{what} is measured on {wanted}, not on {type(data).__name__}")
    module = importlib.import_module(f"effssl.evaluation.{WHERE.get(what, what)}")
    protocol: Callable[..., Score] = getattr(module, f"evaluate_{what.replace('-', '_')}")
    assert not encoder.training, "the encoder is not in eval mode"
    assert not any(p.requires_grad for p in encoder.parameters()), "the encoder is not frozen"
    before = encoder.fingerprint()
    score = protocol(encoder, data, options)
    assert encoder.fingerprint() == before, "an evaluation changed the encoder"
    if lost := score.source.get("unreadable_files"):
        more = f" and {score.source['unreadable'] - len(lost)} more" if score.source["unreadable"] > len(lost) else ""
        say(f"cannot be read and did not count ({score.source['unreadable']}): {', '.join(lost)}{more}")
    return score.of(encoder)


def options_of(what: str, settings: Mapping[str, Any]) -> Any:
    """The protocol's options, complete; unknown protocols and settings, and values out of range, are refused."""
    if what not in PROTOCOLS:
        raise RequestError(f"unknown evaluation {what!r}{did_you_mean(what, PROTOCOLS)}; known: {', '.join(PROTOCOLS)}")
    options: Any = build(PROTOCOLS[what], settings, what)
    for item in fields(options):
        low, high = LIMITS.get(f"{what}.{item.name}", LIMITS.get(item.name, (-INF, INF)))
        value = getattr(options, item.name)
        numbers = [v for v in (value if isinstance(value, tuple) else [value]) if isinstance(v, (int, float))]
        if value == () != item.default:
            raise RequestError(f"{what}: {item.name} needs at least one value")
        if not all(math.isfinite(number) and low <= number <= high for number in numbers):
            between = f"at least {low:g}" if high == INF else f"between {low:g} and {high:g}"
            raise RequestError(f"{what}: {item.name} is {value}; it must be {between}")
    return options


def changed_options(what: str, settings: Mapping[str, Any]) -> list[str]:
    """What was asked otherwise than the protocol's defaults, as `name=value`."""
    given, usual = options_of(what, settings), PROTOCOLS[what]()
    pairs = [(f.name, getattr(given, f.name), getattr(usual, f.name)) for f in fields(given)]
    files = ("reuse", "list")
    return [f"{n}={whole_path(value) if n in files else value}" for n, value, default in pairs if value != default]


def reads_folder(what: str, settings: Mapping[str, Any]) -> bool:
    """Whether a protocol reads a folder by itself."""
    return what == "detect" or (what == "transfer" and bool(settings.get("sets")))


def open_source(
    what: str, settings: Mapping[str, Any], data: str | None, run: Run | None = None, classes: str = ""
) -> Data | str:
    """What a protocol is read on: an opened data set, or the folder that some protocols read by themselves."""
    if classes and (not data or reads_folder(what, settings)):
        raise RequestError("--classes chooses class folders of a labelled --data")
    if reads_folder(what, settings):
        if what == "detect" and not data:
            raise RequestError("detect needs --data, a folder in VOC layout")
        return data or str(data_folder())
    if data:
        # A run that was not to see labels may well be measured by them.
        labels = run.config.labels if run and run.config.labels != "none" else "auto"
        return open_data(data, labels, classes=classes)
    if run is None:
        raise RequestError("an encoder that effssl did not train needs --data")
    return run.data()
