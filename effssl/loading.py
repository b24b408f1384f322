"""Load what a run trained (its encoder, projector and classifier) and open the data that it was trained on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from effssl.run import RunFolder
from effssl.runtime.errors import RequestError

if TYPE_CHECKING:
    from torch import nn

    from effssl.data import Data
    from effssl.network.loaded import LoadedEncoder

CLASSIFIER = re.compile(r"terms\.\w+\.classifier\.weight")


def load(
    source: str | Path, encoder: str = "", weights: str = "default", image_size: int = 0, whiten: str = "on"
) -> LoadedEncoder:
    """An encoder ready for `encoder(images)`: of a run folder, of a weight file, or a torchvision or `timm:` name.

    `encoder` names the architecture of a weight file that does not state it; `weights` of an encoder given by name are
    its library's pretrained ones ("default") or "random". `whiten="off"` leaves out the whitening of an encoder that
    has one.
    """
    from effssl.network.foreign import open_foreign, refuse_flags

    if whiten not in ("on", "off"):
        raise RequestError(f"whiten is on or off, not {whiten!r}")
    path = Path(source).expanduser()
    if path.is_dir():
        refuse_flags(str(source), encoder, weights, image_size)
        loaded = load_run_encoder(RunFolder(path))
    else:
        loaded = open_foreign(str(source), encoder, weights, image_size)
    return loaded.without_whitening() if whiten == "off" else loaded


def open_run_data(run: RunFolder) -> Data:
    """The data set that a run was trained on."""
    from effssl.data import open_data

    config = run.config
    return open_data(config.data, config.labels, config.subset, config.classes)


def load_run_encoder(run: RunFolder, projector: bool = False) -> LoadedEncoder:
    """The trained encoder of a run, frozen, with its preprocessing; on request with the projector g, which reads h."""
    from effssl.runtime.progress import say
    from effssl.training.trained import trained_encoder

    encoder = trained_encoder(run)
    if "checkpoint" in encoder.about:
        whitening = ", without its whitening" if run.config.whiten == "on" else ""
        say(f"{run.folder} is not finished: this is its encoder after {encoder.about['checkpoint']}{whitening}")
    if projector:
        encoder = encoder.without_whitening()
        encoder.projector = _load_projector(run)
    return encoder


def load_run_classifier(run: RunFolder) -> nn.Linear:
    """The linear classifier that a term of the objective trained on h, frozen."""
    from torch import nn

    from effssl.training.trained import trained_weights

    weights = trained_weights(run)
    width = load_run_encoder(run).encoder.h_dim
    found = [key for key in weights if CLASSIFIER.fullmatch(key) and weights[key].shape[1] == width]
    if not found:
        raise RequestError(
            f"{run.folder} has no classifier on its features: no term of {run.config.objective} classifies images by "
            "their labels; train a classifier with effssl classify"
        )
    name = found[0].removesuffix(".weight")
    state = {key: weights[f"{name}.{key}"] for key in ("weight", "bias")}
    layer = nn.Linear(width, len(state["weight"]))
    layer.load_state_dict(state)
    return layer.requires_grad_(False)


def _load_projector(run: RunFolder) -> nn.Module | None:
    """The projector g of a run's checkpoint, frozen; None where z = h, or where the checkpoint is gone."""
    from effssl.training.build import build_network
    from effssl.training.trained import PROJECTOR, part_of, trained_weights

    weights = part_of(trained_weights(run), PROJECTOR)
    if not weights:
        return None
    projector = build_network(run.config).projector
    projector.load_state_dict(weights)
    return projector.requires_grad_(False).eval()
