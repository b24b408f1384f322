"""One image file, or its bytes: its size as displayed, and its pixels as upright RGB."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from effssl.runtime.errors import Stopped
from effssl.runtime.reading import check_regular

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF", "HEIF")
"""What is decoded, whatever a file is called; of other formats PIL starts programs (PostScript: gs) or loads more."""
STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF87a", b"GIF89a")
BRANDS = (b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1")  # of AVIF and HEIF files
ORIENTATION = 0x0112  # the EXIF tag; values 5 to 8 swap width and height


def is_picture(head: bytes) -> bool:
    """Whether a file is a picture by its first bytes; formats whose signature is short are known by their suffix."""
    boxed = head[4:8] == b"ftyp" and head[8:12] in BRANDS
    return head.startswith(STARTS) or boxed or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")


@cache
def known_formats() -> tuple[str, ...]:
    """Those of FORMATS that this pillow reads; HEIF is read by the package pillow-heif."""
    with suppress(ImportError):
        from pillow_heif import register_heif_opener

        register_heif_opener()
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@contextmanager
def opened(source: Path | bytes) -> Iterator[Image.Image]:
    """Open an image file; whatever is wrong with it raises OSError."""
    try:
        if isinstance(source, Path):
            check_regular(source)
        with Image.open(source if isinstance(source, Path) else io.BytesIO(source), formats=known_formats()) as image:
            yield image
    except (OSError, Stopped):
        raise
    except Exception as error:  # damaged bytes make decoders raise anything: ValueError, SyntaxError, struct.error …
        raise OSError(f"{type(error).__name__}: {error}") from None


def displayed_size(source: Path | bytes) -> tuple[int, int] | None:
    """Height and width after EXIF orientation, from the header alone; None if the file is not an image."""
    try:
        with opened(source) as image:
            width, height = image.size
            swap = image.getexif().get(ORIENTATION, 1) in (5, 6, 7, 8)
            return (width, height) if swap else (height, width)
    except OSError:
        return None


def decode(source: Path | bytes, shrink: float = 1.0, least: int = 0) -> Image.Image:
    """Decode an image file as upright RGB.

    A JPEG may come out smaller, but not below `shrink` times its size, or, given `least`, not below so many pixels.
    """
    with opened(source) as image:
        if least:
            image.draft("RGB", (least, least))
        elif shrink < 1:
            image.draft("RGB", (int(image.width * shrink) + 1, int(image.height * shrink) + 1))
        return upright_rgb(image)


def upright_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to RGB: EXIF orientation applied, 16 bits scaled to 8, white behind transparent pixels."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16-bit gray: PIL's own conversion clips instead of scaling
        deep = np.asarray(image).astype(np.int64)
        gray = Image.fromarray((deep >> 8 if deep.max() > 255 else deep).clip(0, 255).astype(np.uint8))
        return gray.convert("RGB")
    if "A" in image.getbands() or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")
