"""The metadata of an encoder file: how a run trained it and how its images are preprocessed."""

from __future__ import annotations

import dataclasses
from typing import Any

from effssl.config import Config
from effssl.objectives.options import TeacherOptions
from effssl.schema import to_dict

KEYS = ("encoder", "image_size", "stem", "objective", "data", "epochs", "seed")


def encoder_metadata(config: Config) -> dict[str, Any]:
    """What has to be known to use a run's encoder."""
    metadata = {key: getattr(config, key) for key in KEYS}
    # The file of saliency maps is left out: its path means nothing elsewhere.
    augment = to_dict(dataclasses.replace(config.augment, saliency=""))
    if config.start_from:
        metadata |= {"start_from": config.start_from, "start_digest": config.start_digest}
    options = [getattr(config, item.name) for item in dataclasses.fields(config)]
    taught = [one for one in options if isinstance(one, TeacherOptions) and one.digest]
    if taught:
        metadata["teacher"] = " + ".join(one.teacher for one in taught)
        metadata["teacher_digest"] = " + ".join(one.digest for one in taught)
    pixels = augment["pixels"]
    return metadata | {"mean": augment["mean"], "std": augment["std"], "pixels": pixels, "augment": augment}
