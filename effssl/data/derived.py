"""Views that are derived from finished ones: copies of another group, and rotation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from effssl.augment.crop import resize
from effssl.augment.options import ViewGroup
from effssl.augment.rotate import rotate
from effssl.data.views import Views


def add_derived(views: Views, groups: Mapping[str, ViewGroup], sides: Mapping[str, int]) -> Views:
    """The views with copies of other groups added and rotated groups rotated, in the order of `groups`."""
    pixels, angles = dict(views.pixels), {}
    # Copies come last: the views that they copy are finished by then.
    for name, group in sorted(groups.items(), key=lambda item: bool(item[1].copy_of)):
        if group.copy_of and name not in pixels:
            pixels[name] = resized(pixels[group.copy_of][: group.count], sides[name])
        if group.rotated:
            angles[name] = draw_angles(views, name, group)
            pixels[name] = rotated(pixels[name], angles[name], group)
    return replace(views, pixels={name: pixels[name] for name in groups}, angles=angles)


def draw_angles(views: Views, name: str, group: ViewGroup) -> Tensor:
    """Positions of the views' angles in the angle set of their group, V×B, on the CPU."""
    count = len(views.index)
    if group.every_angle:
        return torch.arange(len(group.angles)).repeat_interleave(group.count)[:, None].repeat(1, count)
    size = (group.count, views.total)
    positions = torch.randint(len(group.angles), size, generator=views.generator(f"{name} angles"))
    if group.upright:
        uniform = torch.rand(size, generator=views.generator(f"{name} upright"))
        positions = positions * (uniform >= group.upright)
    return positions[:, views.rows][:, :count]


def resized(x: Tensor, side: int) -> Tensor:
    """Views V×B×C×S×S, resized to another side if needed."""
    if x.shape[-1] == side:
        return x
    flat = resize(x.flatten(0, 1), side).contiguous(memory_format=torch.channels_last)
    return flat.unflatten(0, x.shape[:2])


def rotated(x: Tensor, positions: Tensor, group: ViewGroup) -> Tensor:
    """Views V×B×C×S×S rotated by the angles at `positions`; with `every_angle` all V of them at each angle in turn."""
    flat = x.flatten(0, 1)
    parts = positions.flatten().split(len(flat))  # one, or one per angle
    turned = [rotate(flat, of_part, group.angles) for of_part in parts]
    together = torch.cat(turned) if len(turned) > 1 else turned[0]
    return together.contiguous(memory_format=torch.channels_last).unflatten(0, positions.shape)
