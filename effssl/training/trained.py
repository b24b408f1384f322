"""What a run trained so far: its encoder file or, before its end, the network of its last checkpoint."""

from __future__ import annotations

from typing import Any

from effssl.network.encoders import build_encoder
from effssl.network.loaded import LoadedEncoder, freeze, load_encoder
from effssl.run import RunFolder
from effssl.runtime.errors import RequestError
from effssl.runtime.reading import describe
from effssl.training.checkpoint import evaluated_weights, load_checkpoint
from effssl.training.metadata import encoder_metadata

BACKBONE = "network.encoder.backbone."
PROJECTOR = "network.projector."


def trained_encoder(run: RunFolder) -> LoadedEncoder:
    """The encoder of a run, frozen; `about["checkpoint"]` says of one that is not finished how far it is."""
    if run.finished:
        return load_encoder(run.encoder_path)
    state = load_checkpoint(run.checkpoint_path)
    if state is None:
        raise RequestError(f"the run {run.folder} has no checkpoint yet; resume it with --resume auto")
    config = run.config
    encoder = build_encoder(config.encoder, config.image_size, config.stem, config.augment.pixels.channels)
    try:
        at = state["position"]
        place = f"epoch {at['epoch']} of {config.epochs}" + (f" and {at['step']} steps" if at["step"] else "")
        encoder.backbone.load_state_dict(part_of(evaluated_weights(state), BACKBONE))
    except (LookupError, TypeError, RuntimeError) as error:
        raise RequestError(f"{run.checkpoint_path} does not hold the state of this run: {describe(error)}") from None
    return freeze(encoder, encoder_metadata(config) | {"epochs": at["epoch"], "checkpoint": place})


def trained_weights(run: RunFolder) -> dict[str, Any]:
    """Weights of network and terms by name, from the run's last checkpoint; none where it is gone."""
    state = load_checkpoint(run.checkpoint_path)
    return {} if state is None else evaluated_weights(state)


def part_of(weights: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The weights whose names have a prefix, without it."""
    return {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
