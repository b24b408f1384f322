"""Thumbnails on one sheet."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from PIL import Image

from effssl.report.sample import sheet


def test_the_page_is_small_for_many_images() -> None:
    noise = torch.randint(0, 256, (6000, 3, 32, 32), dtype=torch.uint8)  # the worst there is for JPEG
    assert len(sheet(noise, 32)["src"]) < 14e6


def test_tiles_do_not_bleed_into_each_other() -> None:
    pixels = torch.zeros(9, 3, 16, 16, dtype=torch.uint8)
    pixels[4] = 255
    grid = sheet(pixels, 16)
    pixels_of_sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(grid["src"].split(",")[1]))))
    assert (grid["columns"], grid["rows"]) == (3, 3)
    assert pixels_of_sheet[16:32, 16:32].min() > 250
    assert pixels_of_sheet[:16].max() < 5
