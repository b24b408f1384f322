"""The pixels of images that are browsed: thumbnails, whole pictures, and their files."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from effssl.augment.pixel_format import PICTURES
from effssl.data import Images
from effssl.data.archive import ArchiveImages
from effssl.data.display import picture
from effssl.data.folder import FolderImages
from effssl.data.formats import decode_picture, examine, read_pixels
from effssl.data.image_files import opened
from effssl.explore.gallery import Gallery, real_path
from effssl.runtime.cores import usable_cores
from effssl.runtime.progress import progress_bar

MARGIN = 2  # a JPEG is decoded at no less than twice the size that is needed
TINY = 48  # pixels: smaller images are stored without loss and shown enlarged
QUALITY = 80
SHOWABLE = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "GIF": "image/gif", "BMP": "image/bmp"}
BLOCK = 256  # images that threads read at a time: all futures would take much memory


@dataclass(frozen=True)
class Pictures:
    """The pictures of named images: those of a gallery, or else files."""

    names: Sequence[str]
    places: dict[str, tuple[Images, int]] = field(default_factory=dict)  # of a gallery: its set, and its row in it

    @classmethod
    def of(cls, names: Sequence[str], gallery: Gallery | None) -> Pictures:
        """The pictures of these images; images without files need their gallery."""
        if gallery is None:
            return cls(names)
        places = ((images, row) for images in gallery.splits for row in range(len(images)))
        return cls(names, dict(zip(gallery.names, places, strict=True)))

    def file(self, row: int) -> Path | None:
        """The file of an image, if it has one of its own and that is there."""
        images, at = self.places.get(self.names[row], (None, 0))
        path = real_path(self.names[row]) if images is None else images.paths[at] if images.paths else None
        return path if path is not None and os.path.isabs(path) and path.is_file() else None

    def read(self, row: int, side: int = 0) -> Image.Image:
        """One image as RGB; with `side`, perhaps smaller, but not below that. OSError if it cannot be read."""
        images, at = self.places.get(self.names[row], (None, 0))
        if images is None:
            source: Path | bytes = real_path(self.names[row])
        elif isinstance(images, (FolderImages, ArchiveImages)) and images.pixel_format == PICTURES:
            source = images.files().content(at)
        else:
            return images.image(at)
        about = examine(source)
        if about is None:
            raise OSError("it is no image")
        if images is None and not about.pixels.is_picture:
            return picture(read_pixels(source, about.pixels), about.pixels)
        return decode_picture(source, min(1.0, MARGIN * side / max(about.size)) if side else 1.0)

    def thumbnail(self, row: int, side: int) -> bytes:
        """A WebP picture of at most `side` pixels; an image is never enlarged."""
        image = self.read(row, side)
        tiny = max(image.size) <= TINY
        image.thumbnail((side, side))
        content = io.BytesIO()
        image.save(content, "WEBP", quality=QUALITY, lossless=tiny)
        return content.getvalue()

    def whole(self, row: int) -> tuple[bytes, str]:
        """An image at its full size as a browser shows it, and its type: its file as it is, or a PNG picture."""
        file = self.file(row)
        if file is not None and (kind := _shown_as(file)):
            return file.read_bytes(), kind
        content = io.BytesIO()
        self.read(row).save(content, "PNG")
        return content.getvalue(), "image/png"

    def thumbnails(self, side: int) -> Iterator[bytes]:
        """Thumbnails of all images in order; empty for one that cannot be read."""

        def one(row: int) -> bytes:
            try:
                return self.thumbnail(row, side)
            except OSError:  # moved, deleted, or without its data set
                return b""

        with ThreadPoolExecutor(usable_cores()) as pool, progress_bar("thumbnails", len(self.names)) as advance:
            for start in range(0, len(self.names), BLOCK):
                rows = range(start, min(start + BLOCK, len(self.names)))
                yield from pool.map(one, rows)
                advance(len(rows))


def _shown_as(file: Path) -> str | None:
    """The type under which a browser shows a file; None for one that it may not show."""
    try:
        with opened(file) as image:
            image.verify()
            return SHOWABLE.get(image.format or "")
    except OSError:
        return None
