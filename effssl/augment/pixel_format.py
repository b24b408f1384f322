"""What a pixel is: how many channels, of which type, and which values are 0 and 1 to augmentation. No torch here.

This is stated once per set of images (`Images.pixel_format`) and once per encoder, and carried along by configurations,
packs and encoder files. Everything that depends on it asks here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from effssl.runtime.errors import RequestError
from effssl.schema import Between

MOST_CHANNELS = 32
LIMITS = {"uint8": (0.0, 255.0), "uint16": (0.0, 65535.0), "float32": (0.0, 1.0)}
"""Types of a pixel's value, and the values that become 0 and 1: all that the type holds, of floats 0 and 1."""


@dataclass(frozen=True)
class PixelFormat:
    """Channels, type and range of pixels; they follow from the images. Pictures are RGB of 8 bits."""

    channels: Annotated[int, Between(1, MOST_CHANNELS)] = 3
    """channels of the images"""
    depth: Literal["uint8", "uint16", "float32"] = "uint8"
    """type of a pixel's values"""
    range: tuple[float, float] = LIMITS["uint8"]
    """pixel values that become 0 and 1; of floats outside of these, the smallest and the largest of a sample"""
    shown: Annotated[tuple[int, ...], Between(1, MOST_CHANNELS)] = ()
    """channels shown as red, green and blue, counted from 1; by default the first three"""

    @property
    def is_picture(self) -> bool:
        """Whether these are RGB images of 8 bits, as most image files are."""
        return (self.channels, self.depth) == (3, "uint8")

    @property
    def is_color(self) -> bool:
        """Whether three channels are red, green and blue: floats beyond 0 … 1 measure something else."""
        return self.channels == 3 and (self.depth != "float32" or self.range == LIMITS["float32"])

    @property
    def bytes(self) -> int:
        """Bytes of a pixel."""
        return self.channels * {"uint8": 1, "uint16": 2, "float32": 4}[self.depth]

    def __str__(self) -> str:
        if self.is_picture:
            return "RGB of 8 bits"
        return f"{self.channels} channel{'s' if self.channels > 1 else ''} of {self.depth}"

    def range_in(self, images: PixelFormat) -> tuple[float, float]:
        """The values that become 0 and 1 where this is wanted and images have another format; refused if they differ.

        One channel may be read as three.

        >>> PixelFormat().range_in(PixelFormat(1, "uint16", (0.0, 65535.0)))
        (0.0, 65535.0)
        """
        if images.channels != self.channels and (images.channels, self.channels) != (1, 3):
            raise RequestError(f"the images have {images}, and the encoder takes {self}")
        return self.range if self.depth == images.depth else images.range

    def shown_channels(self) -> tuple[int, int, int]:
        """The three channels that are shown as red, green and blue, counted from 0.

        >>> PixelFormat(12).shown_channels(), PixelFormat(2).shown_channels(), PixelFormat(1).shown_channels()
        ((0, 1, 2), (0, 1, 0), (0, 0, 0))
        """
        if not self.shown:
            return (0, 1, 2) if self.channels > 2 else (0, 1, 0) if self.channels == 2 else (0, 0, 0)
        if len(self.shown) not in (1, 3) or not 1 <= min(self.shown) <= max(self.shown) <= self.channels:
            raise RequestError(f"channels to show are {list(self.shown)}; give one or three, of 1 to {self.channels}")
        r, *others = (channel - 1 for channel in self.shown)
        return (r, others[0], others[1]) if others else (r, r, r)


PICTURES = PixelFormat()
"""RGB of 8 bits."""


def stored_format(pixels: PixelFormat) -> PixelFormat:
    """How crops of such pixels are stored: those of pictures as pictures, others as floats."""
    if pixels.is_picture:
        return pixels
    limits = pixels.range if pixels.depth == "float32" else LIMITS["float32"]
    return replace(pixels, depth="float32", range=limits)
