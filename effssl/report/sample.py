"""Images of a report: a fixed random sample, decoded once, and thumbnails on one sheet."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from effssl.augment.crop import center_boxes, crop_resize
from effssl.augment.pixel_format import stored_format
from effssl.data import ArrayImages, Data, Images
from effssl.data.images import Reading, crop_batches
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import progress_bar
from effssl.runtime.randomness import generator

BLOCK = 8  # pixels: JPEG codes blocks of this size, so tiles of whole blocks do not bleed into each other
QUALITY = 82


@dataclass(frozen=True)
class Sample:
    """Images of a run under the test transform of its encoder."""

    images: ArrayImages
    names: list[str]
    held_out: Tensor  # N booleans: images of the validation split


def sample_images(data: Data, encoder: LoadedEncoder, count: int) -> Sample:
    """At most `count` training images; with labels, half of them are of the validation split. Test is never read."""
    if data.train.labels is None:
        parts = [(choose(data.train, count), False)]
    else:
        fit, validation = data.validation()
        held_out = choose(validation, count // 2)
        parts = [(choose(fit, count - len(held_out)), False), (held_out, True)]
    read_parts = [(read_images(images, encoder), held) for images, held in parts if len(images)]
    pixels = [part.pixels for (part, _), _ in read_parts]
    if not pixels or not sum(map(len, pixels)):
        raise RequestError("none of the sampled images can be read")
    first = read_parts[0][0][0]
    labels = None if first.labels is None else torch.cat([p.labels for (p, _), _ in read_parts if p.labels is not None])
    held = torch.cat([torch.full((len(part),), held) for (part, _), held in read_parts])
    names = [name for (_, names), _ in read_parts for name in names]
    images = ArrayImages(torch.cat(pixels), labels, first.classes, pixel_format=first.pixel_format)
    return Sample(images, names, held)


def choose(images: Images, most: int) -> Images:
    """A fixed random subset of at most `most` images."""
    rows = torch.randperm(len(images), generator=generator(0, "report"))[:most].sort().values
    return images.select(rows)


def read_images(images: Images, encoder: LoadedEncoder) -> tuple[ArrayImages, list[str]]:
    """Decode images with the encoder's test transform, and their names; files that cannot be read are omitted."""
    stored = stored_format(encoder.pixels)
    none = torch.empty(0, stored.channels, encoder.size, encoder.size, dtype=getattr(torch, stored.depth))
    parts, kept = [none], [torch.empty(0, dtype=torch.long)]
    boxes = center_boxes(images.sizes, encoder.share)
    with progress_bar("report: reading images", len(images)) as advance:
        reading = Reading(filter=encoder.filter, pixels=encoder.pixels)
        for pixels, rows in crop_batches(images, boxes, encoder.size, 100, reading):
            low, high = stored.range
            values = low + (high - low) * pixels
            parts.append(values.round().clamp(0, 255).to(torch.uint8) if stored.is_picture else values)
            kept.append(rows)
            advance(len(rows))
    rows = torch.cat(kept)
    names = ["/".join(images.paths[row].parts[-2:]) if images.paths else "" for row in rows.tolist()]
    labels = None if images.labels is None else images.labels[rows]
    return ArrayImages(torch.cat(parts), labels, images.classes, pixel_format=stored), names


def rgb_of(images: ArrayImages, encoder: LoadedEncoder) -> Tensor:
    """Images as RGB between 0 and 255, N×3×H×W."""
    if images.pixel_format.is_picture and not encoder.pixels.shown:
        return images.pixels
    return false_color(encoder.preprocess(images.pixels), encoder)


def false_color(x: Tensor, encoder: LoadedEncoder) -> Tensor:
    """Normalized images N×C×S×S as RGB between 0 and 255: pictures as they were, others in false color, N×3×S×S.

    A channel of false color is gray at its mean, and black and white at two deviations from it.
    """
    if encoder.pixels.is_picture:
        mean, std = (torch.tensor(encoder.about[key]).view(1, -1, 1, 1) for key in ("mean", "std"))
        x = x.float().cpu() * std + mean
    else:
        x = 0.5 + x.float().cpu() / 4
    x = x[:, list(encoder.pixels.shown_channels())] if encoder.pixels.shown or x.shape[1] != 3 else x
    return x.clamp(0, 1) * 255


def tile_side(pixels: Tensor, count: int) -> int:
    """Side of a thumbnail in pixels: smaller for more images, and not larger than the images."""
    most = 64 if count <= 1500 else 48 if count <= 3000 else 32
    side = min(pixels.shape[-2:])
    return min(most, -(-side // BLOCK) * BLOCK)


def sheet(pixels: Tensor, side: int) -> dict[str, Any]:
    """All images (N×3×H×W, uint8 or float in 0…255) on one JPEG, as a data URL."""
    sizes = torch.tensor(pixels.shape[-2:])
    columns = max(1, round(len(pixels) ** 0.5))
    rows = -(-len(pixels) // columns)
    canvas = torch.zeros(rows * columns, 3, side, side, dtype=torch.uint8)
    for start in range(0, len(pixels), 500):
        part = pixels[start : start + 500]
        small = crop_resize(part, center_boxes(sizes.expand(len(part), 2), 1.0), side)
        canvas[start : start + len(part)] = small.round().clamp(0, 255).to(torch.uint8)
    grid = canvas.view(rows, columns, 3, side, side).permute(0, 3, 1, 4, 2).reshape(rows * side, columns * side, 3)
    buffer = io.BytesIO()
    Image.fromarray(grid.contiguous().numpy()).save(buffer, "JPEG", quality=QUALITY, subsampling=0)
    url = "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
    return {"src": url, "columns": columns, "rows": rows, "side": side}
