"""From what `--start-from` names to weights: a run folder, a weight file, a pretrained model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from effssl.config import Config
from effssl.network.encoders import build_encoder
from effssl.network.foreign import FILES, MEAN, STD, TORCHVISION, open_foreign, read_weights
from effssl.network.loaded import LoadedEncoder, check_weights, digest_of, freeze, is_encoder_file
from effssl.network.options import DERIVED_STEMS, patch_filters, pixels_side
from effssl.network.small import small_width
from effssl.network.start import StartingWeights
from effssl.run import RunFolder
from effssl.runtime.errors import RequestError
from effssl.training.metadata import encoder_metadata
from effssl.training.trained import PROJECTOR, part_of, trained_encoder, trained_weights

FOLLOWING = ("encoder", "stem", "start_from", "start_digest")  # settings that weights decide, beside mean and std


def read_start(what: str, given: Mapping[str, Any]) -> StartingWeights:
    """The weights that `--start-from` names; `given` is what else was asked for: an architecture, a preprocessing."""
    path, encoder = Path(what).expanduser(), str(given.get("encoder", ""))
    name = what.removeprefix(TORCHVISION)
    if path.is_dir():
        run = RunFolder(path)
        return _of_encoder(what, trained_encoder(run), encoder, run)
    if path.is_file() and not is_encoder_file(path):
        return _of_file(path, encoder, given.get("augment", {}))
    if not path.is_file() and (small_width(name) or patch_filters(name) or pixels_side(name)):
        raise RequestError(f"there are no pretrained weights of {name}; give a run folder or a weight file")
    return _of_encoder(what, open_foreign(what), encoder)


def _of_encoder(what: str, loaded: LoadedEncoder, asked: str, run: RunFolder | None = None) -> StartingWeights:
    """Those of an encoder with its preprocessing; of whitened features, those of the network below."""
    loaded = loaded.without_whitening()
    name = loaded.about["encoder"]
    if patch_filters(name) or pixels_side(name):
        raise RequestError(f"{what} is an encoder of {name}, which has no weights to train")
    if asked and asked != name:
        raise RequestError(f"{what} holds weights of {name}, not of {asked}; leave --encoder out")
    mean, std = loaded.about["mean"], loaded.about["std"]
    if loaded.about.get("renormalizes"):  # the network turned ImageNet's normalization into this one
        mean, std = (0.5,) * 3, (0.5,) * 3
    digest = loaded.fingerprint()
    settings = _settings(what, digest, name, mean, std)
    if loaded.about["stem"] in DERIVED_STEMS:
        settings["stem"] = loaded.about["stem"]
    tensors = loaded.backbone.state_dict()
    if run is None:
        return StartingWeights(settings["start_from"], digest, tensors, settings)
    projector = part_of(trained_weights(run), PROJECTOR)
    return StartingWeights(settings["start_from"], digest, tensors, settings, projector, loaded.size)


def _of_file(path: Path, encoder: str, augment: Mapping[str, Any]) -> StartingWeights:
    """Those of another project's file, which names neither its architecture nor its preprocessing."""
    tensors = read_weights(path)
    if not encoder:
        raise RequestError(f"{path} does not name its architecture; add --encoder, e.g. --encoder resnet50")
    check_weights(tensors, path)
    digest = digest_of(tensors)
    settings = _settings(str(path), digest, encoder, MEAN, STD)
    assumed = tuple(name for name in ("mean", "std") if name not in augment)
    return StartingWeights(settings["start_from"], digest, tensors, settings, assumed=assumed)


def starting_encoder(config: Config) -> LoadedEncoder | None:
    """What a run started from, as its first evaluation saw it: adapted, at its image size, with its preprocessing.

    None if the source holds other weights by now.
    """
    start = read_start(config.start_from, {"encoder": config.encoder})
    if start.digest != config.start_digest:
        return None
    encoder = build_encoder(config.encoder, config.image_size, config.stem, config.augment.pixels.channels)
    start.fill(encoder)
    return freeze(encoder, encoder_metadata(config))


def _settings(what: str, digest: str, encoder: str, mean: Any, std: Any) -> dict[str, Any]:
    preprocessing = {"mean": tuple(mean), "std": tuple(std)}
    return {"start_from": place_of(what), "start_digest": digest, "encoder": encoder, "augment": preprocessing}


def place_of(what: str) -> str:
    """How a configuration names it: a model by its name, a folder or file by its whole path."""
    path = Path(what).expanduser()
    if path.is_dir():
        return str(path.resolve())
    return os.path.abspath(path) if path.exists() or path.suffix in FILES or "/" in what else what


def is_same_place(what: str, recorded: str) -> bool:
    """Whether a request names what a configuration recorded, which may be gone by now."""
    return recorded in (place_of(what), str(Path(what).expanduser().resolve()) if what else "")


def settings_to_keep(before: Config) -> dict[str, Any]:
    """The settings that the starting weights of an earlier attempt decided; they need not be read again."""
    kept = {name: getattr(before, name) for name in FOLLOWING}
    return kept | {"augment": {"mean": before.augment.mean, "std": before.augment.std}}


def over_settings(settings: Mapping[str, Any], given: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags, and beneath what was given the settings that follow from the weights."""
    mine = {key: value for key, value in settings.items() if key not in given or key.startswith("start_")}
    augment = {key: value for key, value in settings["augment"].items() if key not in given.get("augment", {})}
    return {**flags, **mine, "augment": {**augment, **flags.get("augment", {})}}
