"""The page as one HTML file: its values, and with embedded thumbnails all it needs; it loads nothing."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from effssl.browsing.analysis import Analysis
from effssl.browsing.pictures import Pictures
from effssl.browsing.views import Section, View
from effssl.explore.gallery import Gallery
from effssl.explore.labels import Names
from effssl.report.page import FOLDER as REPORT_FOLDER
from effssl.report.page import as_block, render_template
from effssl.runtime.progress import say

FOLDER = Path(__file__).parent
SCRIPTS = ("images.js", "grid.js", "inspector.js", "actions.js", "browse.js")
SHARED = ("elements.js", "map.js")
SIDES = ((1000, 224), (4000, 160), (20000, 112))  # pixels of a thumbnail in a file of at most so many images
SMALLEST_SIDE = 64
MOST = 1000  # images of a table on a page


def thumbnail_side(count: int) -> int:
    """Pixels of a thumbnail: smaller for more images, so that a file of 20,000 opens quickly."""
    return next((side for most, side in SIDES if count <= most), SMALLEST_SIDE)


def image_values(names: Names, labels: Sequence[str | None] | None, pictures: Pictures) -> dict[str, Any]:
    """What the page knows of each image."""
    classes = sorted({label for label in labels or [] if label is not None})
    number = {label: i for i, label in enumerate(classes)}
    relative = [names.relative(name) for name in names.names]
    return {
        "root": names.root,
        "names": relative,
        "files": [int(pictures.file(row) is not None) for row in range(len(names.names))],
        "labels": [-1 if label is None else number[label] for label in labels] if labels and classes else None,
        "classes": classes,
        "digest": hashlib.blake2b("\n".join(names.names).encode(), digest_size=8).hexdigest(),
    }


def analysis_values(analysis: Analysis) -> dict[str, Any]:
    """What was computed, its large arrays packed."""
    return {
        "maps": {name: packed(points.clip(0, 1) * 65535, np.uint16) for name, points in analysis.maps.items()},
        "mapped": analysis.mapped,
        "cluster": packed(analysis.cluster, np.uint8),
        "order": packed(analysis.order, np.uint32),
        "neighbors": packed(analysis.index.numpy(), np.uint32),
        "similarity": packed(analysis.similarity.numpy().clip(0, 1) * 10000, np.uint16),
        "k": analysis.index.shape[1],
        "typical": analysis.typical,
        "views": [asdict(view) for view in analysis.views],
    }


def packed(values: np.ndarray, kind: type) -> str:
    """An array as text, little-endian."""
    whole = np.round(values) if np.issubdtype(values.dtype, np.floating) else values
    return base64.b64encode(np.ascontiguousarray(whole, np.dtype(kind).newbyteorder("<")).tobytes()).decode()


def with_thumbnails(values: dict[str, Any], pictures: Pictures) -> tuple[dict[str, Any], str]:
    """The values and the thumbnails of a file that needs no server: base64 texts one after another."""
    side, parts = thumbnail_side(len(pictures.names)), []
    for content in pictures.thumbnails(side):
        parts.append(base64.b64encode(content).decode())
    if missing := sum(not part for part in parts):
        say(f"{missing} images of the page are not found; were the files moved? images without files need --data")
    ends = np.cumsum([len(part) for part in parts])
    return values | {"side": side, "thumbs": packed(ends, np.uint32)}, "".join(parts)


def render_browse(values: Mapping[str, Any], thumbs: str = "") -> bytes:
    """Render the page. Only its own script may run, whatever names and labels hold."""
    script = "\n".join(
        [*((REPORT_FOLDER / name).read_text(encoding="utf-8") for name in SHARED),
         *((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)]
    )  # fmt: skip
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    images = "'self' data: blob:" if values["server"] else "data: file:"  # the chosen image is its own file
    policy = f"default-src 'none'; img-src {images}; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    policy += "; connect-src 'self'; form-action 'none'; base-uri 'none'" if values["server"] else "; base-uri 'none'"
    styles = [REPORT_FOLDER / "page.css", FOLDER / "browse.css"]
    return render_template(
        FOLDER, "browse.html", data=values, block=as_block(dict(values)), policy=policy, script=script,
        style="\n".join(path.read_text(encoding="utf-8") for path in styles), thumbs=thumbs,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------
# A table of images, as the other verbs write it


def table_page(rows: Sequence[Mapping[str, Any]], title: str, view: str, gallery: Gallery | None = None) -> bytes:
    """The images of a table as the only view of a page: a section per query or group.

    Images of arrays, packs and archives have no files: their pixels are read from the gallery.
    """
    title = f"{title}; the first {MOST}, a .csv file has all" if len(rows) > MOST else title
    rows = [_with_whole_query(row) for row in rows[:MOST]]
    names = list(dict.fromkeys(name for row in rows for name in (row.get("query"), row["image"]) if name is not None))
    labels = {row["image"]: row["label"] for row in rows if row.get("label") is not None}
    place = {name: i for i, name in enumerate(names)}
    sections = []
    for key, group in groupby(rows, lambda row: row.get("query", row.get("group"))):
        sections.append(_table_section(key, list(group), place))
    pictures = Pictures.of(names, gallery)
    known = Names.of(names, None) if names and all(map(os.path.isabs, names)) else Names("", names)
    values = image_values(known, [labels.get(name) for name in names], pictures)
    values |= {"title": title, "about": "", "server": False, "query": False, "saves": "", "unreadable": 0}
    values |= {"tags": {}, "maps": None, "views": [asdict(View(view, view.capitalize(), "", sections))]}
    return render_browse(*with_thumbnails(values, pictures))


def _with_whole_query(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row whose query, if it is a file, has its whole path, as the images have."""
    query = row.get("query")
    return {**row, "query": os.path.abspath(query)} if query is not None and os.path.isfile(query) else row


def _table_section(key: Any, members: Sequence[Mapping[str, Any]], place: Mapping[str, int]) -> Section:
    """The images of a query or group with their captions."""
    shown, captions = [place[row["image"]] for row in members], [" · ".join(_captions(row)) for row in members]
    if "query" in members[0]:
        return Section(Path(str(key)).name, [place[key], *shown], ["query", *captions], "query")
    title = "" if key is None else f"Group {key}"
    return Section(title, shown, captions, "keep" if members[0].get("do") == "keep" else "")


def _captions(row: Mapping[str, Any]) -> Iterable[str]:
    shown_elsewhere = ("image", "query", "group", "nearest", "label", "bytes", "height", "do")
    for key, value in row.items():
        if key not in shown_elsewhere and value is not None:
            text = f"{value:.3f}" if isinstance(value, float) else str(value)
            yield f"{value}×{row['height']}" if key == "width" else text if key in ("similarity",) else f"{key} {text}"
