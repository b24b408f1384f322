"""What the probes share: the features they read, h and z, and the images they are evaluated on."""

from __future__ import annotations

from effssl.data import Data, Images
from effssl.evaluation.score import Score
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError


def probed_features(encoder: LoadedEncoder, on: str) -> list[str]:
    """Which features to probe: h and, where the encoder has its projector, z."""
    if on == "both":
        return ["h", "z"] if encoder.projector is not None else ["h"]
    if on == "z" and encoder.projector is None:
        raise RequestError("this encoder has no projector; z is known for run folders only (use --on h)")
    return [on]


def unlabelled_test_images(data: Data, what: str) -> Images:
    """The test images; labels are not needed."""
    if data.test is None:
        raise RequestError(f"{data.name} has no test images, which {what} needs; put them in train/ and test/")
    return data.test


def probe_score(protocol: str, accuracy: dict[str, float], constants: dict) -> Score:
    """The score of a probe: accuracy on the first features, that on others beside it."""
    first, *others = accuracy
    also = {f"on_{features}": accuracy[features] for features in others}
    return Score(protocol, accuracy[first], f"accuracy on {first}", constants, also)
