"""A table of images as one HTML page that shows them; it needs no other file."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from effssl.data import ArrayImages, Images, PackedImages
from effssl.data.folder import decode
from effssl.explore.gallery import Gallery
from effssl.report.page import POLICY
from effssl.runtime.progress import counter, say

SIDE = 144  # of the pictures on the page
MOST = 1000  # pictures on a page: more would be too much for a browser
STYLE = """:root{color-scheme:light dark} body{font:16px/1.4 system-ui,sans-serif;margin:1rem;overflow-wrap:anywhere}
h1{font-size:1.4rem} h2{font-size:1.05rem;margin:1.4rem 0 .5rem} section{display:flex;flex-wrap:wrap;gap:1rem}
figure{margin:0;width:10rem;max-width:calc(50% - .5rem)} figcaption{font-size:.85rem} img{max-width:100%}
.first img{outline:3px solid #2a7} .none{border:1px dashed;padding:3em 1em;text-align:center}"""
NONE = "<div class=none>picture not found</div>"
Places = Mapping[str, tuple[Images, int]]  # of images that are not in files of their own: a set, and the row in it


def gallery_page(rows: Sequence[Mapping[str, Any]], title: str, gallery: Gallery | None = None) -> str:
    """Images with what is known of each: a section per query or group, beginning with the query or the one to keep.

    Images of arrays and packs have no files: the gallery they are of has their pixels.
    """
    parts, names = (gallery.parts, gallery.names) if gallery else ([], [])
    places = dict(zip(names, ((part, row) for part in parts for row in range(len(part))), strict=True))
    sections = []
    with counter("drawing the page", min(MOST, len(rows))) as advance:
        for key, group in groupby(rows[:MOST], lambda row: row.get("query", row.get("group"))):
            of_group = list(group)
            figures = [_figure(key, ["query"], True, places)] if "query" in of_group[0] else []
            figures += [_figure(row["image"], _facts(row), row.get("do") == "keep", places) for row in of_group]
            heading = "" if key is None else f"<h2>{'group ' if 'group' in of_group[0] else ''}{escape(str(key))}</h2>"
            sections.append(f"{heading}<section>{''.join(figures)}</section>")
            advance(len(of_group))
    more = f"<p>… and {len(rows) - MOST} more, which a .csv file has</p>" if len(rows) > MOST else ""
    narrow = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f'<meta charset="utf-8">{POLICY}{narrow}<title>{escape(title)}</title><style>{STYLE}</style>'
    body = f"<h1>{escape(title)}</h1>{''.join(sections)}{more}"
    if lost := body.count(NONE):
        say(f"not found, {lost} pictures of the page; are the files still there? images without files need --data")
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _facts(row: Mapping[str, Any]) -> Iterable[str]:
    left_out = ("image", "query", "group", "nearest", None)
    for key, value in row.items():
        if key not in left_out and value is not None:
            yield value if key == "do" else f"{key} {value:.4f}" if isinstance(value, float) else f"{key} {value}"


def _figure(name: str, facts: Iterable[str], first: bool, places: Places) -> str:
    caption = "<br>".join(escape(text) for text in (Path(name).name, *facts))
    return (
        f'<figure{" class=first" if first else ""} title="{escape(name)}">{_picture(name, places)}'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _picture(name: str, places: Places) -> str:
    part, row = places.get(name, (None, 0))
    try:
        if isinstance(part, ArrayImages | PackedImages):
            pixels = part.pixels[row] if isinstance(part, ArrayImages) else part.read(torch.tensor([row]))[0]
            image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
        else:
            image = decode(Path(name))
    except OSError:  # gone
        return NONE
    image.thumbnail((SIDE, SIDE))
    if (times := SIDE // max(image.size)) > 1:  # digits of 8 pixels
        image = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    content = io.BytesIO()
    image.save(content, "JPEG", quality=80)
    return f'<img src="data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}" alt="">'
