"""Images of any channels as RGB pictures: false color."""

from __future__ import annotations

import numpy as np
from PIL import Image

from effssl.augment.pixel_format import PixelFormat

ENDS = (1.0, 99.0)  # percentiles of a channel that are shown as black and white


def picture(pixels: np.ndarray, of: PixelFormat) -> Image.Image:
    """One image H×W×C as RGB; where it is no picture already, three channels, each stretched over its own values."""
    if of.is_picture and not of.shown:
        return Image.fromarray(np.ascontiguousarray(pixels))
    chosen = pixels[..., list(of.shown_channels())].astype(np.float32)
    if of.is_picture:
        return Image.fromarray(chosen.astype(np.uint8))
    low, high = np.percentile(chosen, ENDS, axis=(0, 1))
    stretched = (chosen - low) / np.maximum(high - low, np.finfo(np.float32).tiny)
    return Image.fromarray((255 * stretched.clip(0, 1)).round().astype(np.uint8))
