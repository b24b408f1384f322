"""Images for a report: a fixed random sample, read once, and its thumbnails on one sheet."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from effssl.augment.crop import center_boxes, crop_resize
from effssl.data import ArrayImages, Data, Images
from effssl.data.loader import clean_batches
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError
from effssl.runtime.progress import counter
from effssl.runtime.randomness import generator

MOST = 6000  # images that a page can hold without becoming heavy
BLOCK = 8  # pixels: JPEG codes blocks of this size, so tiles of whole blocks do not bleed into each other
QUALITY = 82


@dataclass(frozen=True)
class Sample:
    """Some images of a run, as its encoder sees them."""

    images: ArrayImages
    names: list[str]
    held_out: Tensor  # N booleans: validation images, which labels were not fitted on


def draw(data: Data, encoder: LoadedEncoder, count: int) -> Sample:
    """At most `count` images, half of them from the validation split where there are labels; test is never read."""
    if data.train.labels is None:
        parts = [(some(data.train, count), False)]
    else:
        fit, validation = data.validation()
        held_out = some(validation, count // 2)
        parts = [(some(fit, count - len(held_out)), False), (held_out, True)]
    read_parts = [(read(images, encoder), held) for images, held in parts if len(images)]
    pixels = [part.pixels for (part, _), _ in read_parts]
    if not pixels or not sum(map(len, pixels)):
        raise RequestError("none of the sampled images can be read")
    first = read_parts[0][0][0]
    labels = None if first.labels is None else torch.cat([p.labels for (p, _), _ in read_parts if p.labels is not None])
    held = torch.cat([torch.full((len(part),), held) for (part, _), held in read_parts])
    names = [name for (_, names), _ in read_parts for name in names]
    return Sample(ArrayImages(torch.cat(pixels), labels, first.classes), names, held)


def some(images: Images, most: int) -> Images:
    """A fixed random choice."""
    rows = torch.randperm(len(images), generator=generator(0, "report"))[:most].sort().values
    return images.select(rows)


def read(images: Images, encoder: LoadedEncoder) -> tuple[ArrayImages, list[str]]:
    """Decode images once, under the encoder's test transform; files that cannot be read are left out."""
    if isinstance(images, ArrayImages):
        return images, [""] * len(images)
    parts, kept = [torch.empty(0, 3, encoder.size, encoder.size, dtype=torch.uint8)], [torch.empty(0, dtype=torch.long)]
    boxes = partial(center_boxes, share=encoder.share)
    with counter("report: reading images", len(images)) as advance:
        for pixels, rows in clean_batches(images, encoder.size, boxes, 100, filter=encoder.filter):
            parts.append(pixels)
            kept.append(rows)
            advance(len(rows))
    rows = torch.cat(kept)
    names = ["/".join(images.paths[row].parts[-2:]) for row in rows.tolist()]
    return ArrayImages(torch.cat(parts), None if images.labels is None else images.labels[rows], images.classes), names


def tile_side(pixels: Tensor, count: int) -> int:
    """Side of a thumbnail: that of small images, and less the more there are."""
    most = 64 if count <= 1500 else 48 if count <= 3000 else 32
    side = min(pixels.shape[-2:])
    return min(most, -(-side // BLOCK) * BLOCK)


def sheet(pixels: Tensor, side: int) -> dict[str, Any]:
    """All images (N×3×H×W, uint8 or float in 0…255) on one JPEG, as a data address that needs no other file."""
    sizes = torch.tensor(pixels.shape[-2:])
    columns = max(1, round(len(pixels) ** 0.5))
    rows = -(-len(pixels) // columns)
    canvas = torch.zeros(rows * columns, 3, side, side, dtype=torch.uint8)
    for start in range(0, len(pixels), 500):
        part = pixels[start : start + 500]
        small = crop_resize(part, center_boxes(sizes.expand(len(part), 2), 1.0), side)
        canvas[start : start + len(part)] = small.round().clamp(0, 255).to(torch.uint8)
    picture = canvas.view(rows, columns, 3, side, side).permute(0, 3, 1, 4, 2).reshape(rows * side, columns * side, 3)
    buffer = io.BytesIO()
    Image.fromarray(picture.contiguous().numpy()).save(buffer, "JPEG", quality=QUALITY, subsampling=0)
    address = "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
    return {"src": address, "columns": columns, "rows": rows, "side": side}
