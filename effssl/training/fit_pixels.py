"""What the pixels of the opened images are, and the mean and deviation of each channel, in a run's configuration."""

from __future__ import annotations

import dataclasses
from typing import Any

from effssl.augment.options import Augment
from effssl.augment.pixel_format import PICTURES, PixelFormat
from effssl.data import Images
from effssl.data.far_values import refuse_far_values
from effssl.data.sample import channel_statistics
from effssl.recipes.catalog import read
from effssl.recipes.resolve import Plan
from effssl.run import RunFolder
from effssl.runtime.errors import RequestError


def fit_pixels(plan: Plan, images: Images, before: RunFolder | None = None) -> Plan:
    """The plan with the pixel format of the images, and with a mean and a deviation for each of their channels.

    Those of pictures are the recipe's. Of other pixels nothing is known: they are computed on a sample, unless they
    were given, come with starting weights for such channels, or are those of `before`, the run that is resumed.
    """
    config, found = plan.config, images.pixel_format
    augment, note = config.augment, ""
    pixels = _agreed(augment.pixels, found)
    if before is None and augment.pixels.range == PICTURES.range:
        refuse_far_values(images)
    if before is not None and _plain(before.config.augment.pixels) == _plain(pixels):
        stored = before.config.augment
        augment = dataclasses.replace(augment, pixels=pixels, mean=stored.mean, std=stored.std)
    elif found.is_picture:
        augment = dataclasses.replace(augment, pixels=pixels, **_recipe_statistics(plan))
    elif _is_given(plan, pixels):
        augment = dataclasses.replace(augment, pixels=pixels)
    else:
        augment = dataclasses.replace(augment, pixels=pixels)
        count, mean, std = channel_statistics(images, config.image_size, augment, config.seed)
        augment = dataclasses.replace(augment, mean=mean, std=std)
        low, high = pixels.range
        ends = f", of which {low:g} and {high:g} become 0 and 1" if pixels.depth == "float32" else ""
        note = f"{pixels}{ends}: mean and deviation of each channel, on {count} images: {_listed(mean)}; {_listed(std)}"
    _check(augment)
    notes = [*plan.notes, note] if note else plan.notes
    start = plan.start
    if start is not None and augment.mean != config.augment.mean:  # nothing of the weights' preprocessing is left
        start = dataclasses.replace(start, assumed=())
    return dataclasses.replace(plan, config=dataclasses.replace(config, augment=augment), notes=notes, start=start)


def _recipe_statistics(plan: Plan) -> dict[str, Any]:
    """The recipe's mean and deviation for pictures, where those of the starting weights have other channels."""
    if plan.start is None:
        return {}
    of_recipe = read(plan.config.recipe).get("augment", {})
    return {
        name: tuple(of_recipe.get(name, getattr(Augment, name)))
        for name, of_weights in plan.start.settings["augment"].items()
        if getattr(plan.config.augment, name) == of_weights and len(of_weights) != PICTURES.channels
    }


def _plain(pixels: PixelFormat) -> PixelFormat:
    return dataclasses.replace(pixels, shown=())


def _agreed(asked: PixelFormat, found: PixelFormat) -> PixelFormat:
    """The format of the images, with what the configuration may choose: the range, and the channels that are shown."""
    for name in ("channels", "depth"):
        value = getattr(asked, name)
        if value not in (getattr(PICTURES, name), getattr(found, name)):
            raise RequestError(f"augment.pixels.{name} is {value}, and the images have {found}")
    low, high = asked.range
    if not low < high:
        raise RequestError(f"augment.pixels.range is {[low, high]}; give a smaller and a larger value")
    agreed = dataclasses.replace(found, shown=asked.shown or found.shown)
    agreed.shown_channels()  # refuses channels that the images do not have
    return agreed if asked.range == PICTURES.range else dataclasses.replace(agreed, range=asked.range)


def _is_given(plan: Plan, pixels: PixelFormat) -> bool:
    """Whether mean and deviation were given for these images, and do not stem from a recipe or weights for pictures."""
    config, start = plan.config, plan.start
    if config.augment.pixels == pixels:  # in the configuration of another run
        return True
    if start is not None and config.augment.mean != start.settings["augment"]["mean"]:  # by a flag
        return True
    if config.start_from:  # from weights for these channels
        return len(config.augment.mean) == pixels.channels != PICTURES.channels
    of_recipe = read(config.recipe).get("augment", {}).get("mean", Augment.mean)
    return config.augment.mean != tuple(of_recipe)


def _check(augment: Augment) -> None:
    count = augment.pixels.channels
    for name in ("mean", "std"):
        values = getattr(augment, name)
        if len(values) != count:
            raise RequestError(f"augment.{name} has {len(values)} values, and the images have {augment.pixels}")
    if augment.jitter_by == "color" and count != 3:
        raise RequestError(f"augment.jitter_by color needs red, green and blue, and the images have {augment.pixels}")


def _listed(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.3g}" for value in values)
