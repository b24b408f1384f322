"""A table of images as a self-contained HTML page."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import Image

from effssl.data import Images
from effssl.data.display import picture
from effssl.data.formats import examine, read_pixels
from effssl.explore.gallery import Gallery
from effssl.runtime.progress import progress_bar, say

SIDE = 144  # pixels of a thumbnail
MOST = 1000  # images on a page: more would be too much for a browser
# The page runs no script and loads nothing, whatever names and labels hold.
POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
    "style-src 'unsafe-inline'\">"
)
STYLE = """:root{color-scheme:light dark} body{font:16px/1.4 system-ui,sans-serif;margin:1rem;overflow-wrap:anywhere}
h1{font-size:1.4rem} h2{font-size:1.05rem;margin:1.4rem 0 .5rem} section{display:flex;flex-wrap:wrap;gap:1rem}
figure{margin:0;width:10rem;max-width:calc(50% - .5rem)} figcaption{font-size:.85rem} img{max-width:100%}
.first img{outline:3px solid #2a7} .missing{border:1px dashed;padding:3em 1em;text-align:center}"""
MISSING = "<div class=missing>image not found</div>"
Rows = Mapping[str, tuple[Images, int]]  # of images without files: their set, and their row in it


def gallery_page(rows: Sequence[Mapping[str, Any]], title: str, gallery: Gallery | None = None) -> str:
    """Images with captions: a section per query or group, beginning with the query or the image to keep.

    Images of arrays and packs have no files: their pixels are read from the gallery.
    """
    splits, names = (gallery.splits, gallery.names) if gallery else ([], [])
    positions = dict(zip(names, ((images, row) for images in splits for row in range(len(images))), strict=True))
    sections = []
    with progress_bar("writing the page", min(MOST, len(rows))) as advance:
        for key, group in groupby(rows[:MOST], lambda row: row.get("query", row.get("group"))):
            members = list(group)
            sections.append(_section(key, members, positions))
            advance(len(members))
    more = f"<p>… and {len(rows) - MOST} more, which a .csv file has</p>" if len(rows) > MOST else ""
    viewport = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f'<meta charset="utf-8">{POLICY}{viewport}<title>{escape(title)}</title><style>{STYLE}</style>'
    body = f"<h1>{escape(title)}</h1>{''.join(sections)}{more}"
    if missing := body.count(MISSING):
        say(f"{missing} images of the page are not found; were the files moved? images without files need --data")
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _section(key: Any, members: Sequence[Mapping[str, Any]], positions: Rows) -> str:
    """A heading and the images of a query or group."""
    figures = [_figure(key, ["query"], True, positions)] if "query" in members[0] else []
    figures += [_figure(row["image"], _captions(row), row.get("do") == "keep", positions) for row in members]
    heading = "" if key is None else f"<h2>{'group ' if 'group' in members[0] else ''}{escape(str(key))}</h2>"
    return f"{heading}<section>{''.join(figures)}</section>"


def _captions(row: Mapping[str, Any]) -> Iterable[str]:
    """The lines below an image."""
    shown_elsewhere = ("image", "query", "group", "nearest")
    for key, value in row.items():
        if key not in shown_elsewhere and value is not None:
            yield value if key == "do" else f"{key} {value:.4f}" if isinstance(value, float) else f"{key} {value}"


def _figure(name: str, captions: Iterable[str], first: bool, positions: Rows) -> str:
    caption = "<br>".join(escape(text) for text in (Path(name).name, *captions))
    return (
        f'<figure{" class=first" if first else ""} title="{escape(name)}">{_thumbnail(name, positions)}'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _read(file: Path) -> Image.Image:
    about = examine(file)
    if about is None:
        raise OSError("it is no image")
    return picture(read_pixels(file, about.pixels), about.pixels)


def _thumbnail(name: str, positions: Rows) -> str:
    images, row = positions.get(name, (None, 0))
    try:
        image = _read(Path(name)) if images is None else images.image(row)
    except OSError:  # moved or deleted
        return MISSING
    image.thumbnail((SIDE, SIDE))
    if (times := SIDE // max(image.size)) > 1:  # e.g. digits of 8 pixels
        image = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    content = io.BytesIO()
    image.save(content, "JPEG", quality=80)
    return f'<img src="data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}" alt="">'
