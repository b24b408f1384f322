"""effssl embed, neighbors, duplicates, outliers, subset: use a trained encoder on a folder of images."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from effssl.evaluation.options import Which
from effssl.runtime.errors import RequestError, Stopped
from effssl.runtime.files import check_output, write_atomically

SHOWN = 50  # rows of a table on the screen; a file has them all
PATHS, SIZES = ("image", "nearest"), ("width", "height", "bytes")
NARROWEST = 20  # characters that a path keeps
HOW = ("labels", "encoder", "weights", "image_size", "device", "batch", "workers")


@dataclass(frozen=True)
class Images(Which):
    """Which images an encoder looks at."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = ""
    """run folder, weight file (.safetensors, .pt, .pth), torchvision model or timm:<name>"""
    data: str = ""
    """folder of images, of any layout; or a pack, a .npy/.npz file, cifar10 …: train images, then test images"""
    labels: Literal["auto", "folders", "none"] = "auto"
    """sub-folders are labels: auto only in a train/–val/ or train/–test/ layout"""
    batch: int = 256
    """images that the encoder looks at together; fewer need less memory"""
    workers: int = -1
    """processes that decode; −1 is one per core"""
    overwrite: bool = False
    """replace --out if it is there"""


@dataclass(frozen=True)
class Embed(Images):
    """Features of every image, with its path and label, in a file for other tools.

    Interrupted, the same command goes on. Images that cannot be read are counted and named.
    """

    out: str = ""
    """file to write: .parquet (needs pyarrow), .npz or .csv"""


@dataclass(frozen=True)
class Explore(Images):
    """What the commands that look at features can be told."""

    features: str = ""
    """file of an earlier effssl embed, in place of RUN and --data"""
    out: str = ""
    """also write the table to this .csv or .json file, or to an .html page that shows the images"""


@dataclass(frozen=True)
class NeighborsOf(Explore):
    """The images most similar to one or several others."""

    query: tuple[str, ...] = ()
    """image files, or numbers of images that have no paths"""
    k: int = 10
    """how many"""


@dataclass(frozen=True)
class DuplicatesIn(Explore):
    """Groups of candidates for near-duplicates, and which of each to keep: the largest. Nothing is deleted."""

    threshold: float = 0.97
    """cosine similarity from which on two images are candidates"""


@dataclass(frozen=True)
class OutliersIn(Explore):
    """Odd images: far from even their nearest others."""

    k: int = 10
    """nearest others whose mean distance counts"""
    top: int = 20
    """how many to show"""


@dataclass(frozen=True)
class SubsetOf(Explore):
    """A diverse few: images that are as different from each other as possible."""

    size: int = 0
    """how many"""
    seed: int = 0
    """of the first image"""


def embed_(args: list[str]) -> None:
    """Read the command line and write features."""
    parsed = tyro.cli(Embed, args=args, prog="effssl embed")
    if not parsed.out:
        raise RequestError("where to? --out features.parquet, .npz or .csv")
    if not parsed.run:
        raise RequestError("which encoder? effssl embed RUN --data FOLDER --out FILE")
    from effssl.explore.embedding import embed_file

    try:
        path, about, count = embed_file(parsed.run, parsed.data, parsed.out, overwrite=parsed.overwrite, **_how(parsed))
    except KeyboardInterrupt:
        raise Stopped("stopped; the same command goes on") from None
    lost = f", {len(about.unreadable)} could not be read" if about.unreadable else ""
    print(f"{path}: {count} images × {about.dim} features{lost}   next: effssl outliers --features {path}")


def neighbors_(args: list[str]) -> None:
    """Read the command line and search."""
    parsed = tyro.cli(NeighborsOf, args=args, prog="effssl neighbors")
    _check_out(parsed)
    from effssl.explore.searching import Found, neighbors

    queries = tuple(dict.fromkeys(parsed.query))
    rows = []
    for result in neighbors(**_source(parsed), query=queries, k=parsed.k, **_how(parsed)):
        mine = [{"query": result.query, "rank": rank} | _row(found) for rank, found in enumerate(result.found, 1)]
        _show(mine, f"nearest to {result.query}", without="query")
        rows += mine
    _write(parsed, rows, "nearest images", ["query", "rank", *_columns(Found)])


def duplicates_(args: list[str]) -> None:
    """Read the command line and compare all images with all."""
    parsed = tyro.cli(DuplicatesIn, args=args, prog="effssl duplicates")
    _check_out(parsed)
    from effssl.explore.curating import Copy, duplicates

    groups = duplicates(**_source(parsed), threshold=parsed.threshold, **_how(parsed))
    rows = [
        {"group": number, "do": "?" if group.missing else "keep" if copy is group.keep else "candidate"} | _row(copy)
        for number, group in enumerate(groups, 1)
        for copy in (group.keep, *group.others)
    ]
    extra = sum(len(group.others) for group in groups)
    title = f"candidates for near-duplicates: {len(groups)} groups, {extra} images beside those to keep"
    if rows:
        _show(rows, title)
    else:
        print(f"no two images are as similar as {parsed.threshold}")
    _write(parsed, rows, title, ["group", "do", *_columns(Copy)])


def outliers_(args: list[str]) -> None:
    """Read the command line and find the odd ones."""
    parsed = tyro.cli(OutliersIn, args=args, prog="effssl outliers")
    _check_out(parsed)
    from effssl.explore.curating import Outlier, outliers

    found = outliers(**_source(parsed), k=parsed.k, top=parsed.top, **_how(parsed))
    rows = [_row(one) for one in found]
    _show(rows, "odd images")
    _write(parsed, rows, "odd images", _columns(Outlier))


def subset_(args: list[str]) -> None:
    """Read the command line and choose."""
    parsed = tyro.cli(SubsetOf, args=args, prog="effssl subset")
    _check_out(parsed)
    from effssl.explore.curating import subset

    chosen = subset(**_source(parsed), size=parsed.size, seed=parsed.seed, **_how(parsed))
    columns = zip(chosen.names, chosen.distances, chosen.labels, strict=True)
    rows = [{"image": name, "distance": distance, "label": label} for name, distance, label in columns]
    title = f"{len(rows)} diverse images; no image is farther than {chosen.radius:.3f} from one of them"
    _show(rows, title)
    _write(parsed, rows, title, ["image", "distance", "label"])


def _how(parsed: Images) -> dict[str, Any]:
    return {name: getattr(parsed, name) for name in HOW}


def _source(parsed: Explore) -> dict[str, Any]:
    return {name: getattr(parsed, name) or None for name in ("run", "data", "features")}


def _check_out(parsed: Explore) -> None:
    """Refuse what could not be written in the end, before anything slow."""
    if not parsed.out:
        return
    out = Path(parsed.out).expanduser()
    if out.suffix not in (".csv", ".json", ".html"):
        raise RequestError(f"--out {parsed.out}: the table is written as .csv, .json or .html")
    check_output(out, parsed.overwrite)


def _row(found: Any) -> dict[str, Any]:
    return dict(zip(_columns(type(found)), asdict(found).values(), strict=True))


def _columns(kind: type) -> list[str]:
    return ["image" if field.name == "name" else field.name for field in fields(kind)]


def _write(parsed: Explore, rows: Sequence[dict[str, Any]], title: str, columns: Sequence[str]) -> None:
    """Write a table to the file that was named, if one was; without rows it still has its columns."""
    if not parsed.out:
        return
    if parsed.out.endswith(".json"):
        content = json.dumps(list(rows), indent=2, ensure_ascii=False) + "\n"
    elif parsed.out.endswith(".html"):
        from effssl.explore.gallery import open_gallery
        from effssl.explore.page import gallery_page

        without_files = parsed.data and rows and not os.path.isabs(rows[0]["image"])
        content = gallery_page(rows, title, open_gallery(parsed.data, parsed.labels) if without_files else None)
    else:
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        content = text.getvalue()
    write_atomically(Path(parsed.out).expanduser(), content)
    print(f"written: {parsed.out}")


def _show(rows: Sequence[dict[str, Any]], title: str, without: str = "") -> None:
    from rich.markup import escape

    from effssl.runtime.progress import table

    if not rows:
        print(f"{title}: none")
        return
    # What all paths begin with is said once.
    top = os.path.commonpath([os.path.dirname(row[key]) for row in rows for key in PATHS if key in row])
    top = f"{top}/" if top.strip("/") else ""

    def cell(key: str, value: Any) -> str:
        text = f"{value:.4f}" if isinstance(value, float) else "" if value is None else str(value)
        return text.removeprefix(top) if key in PATHS else text

    shown = rows[:SHOWN]
    columns = {key: [cell(key, row[key]) for row in shown] for key in rows[0] if key != without}
    columns = {key: cells for key, cells in columns.items() if any(cells)}  # labels may be what nobody knows
    _fit(columns)
    named = f"{escape(title)}{f' (below {escape(top)})' if top else ''}"
    lines = [[escape(cells[i]) for cells in columns.values()] for i in range(len(shown))]
    table(named, columns, lines, left=(*PATHS, "label", "do"))
    if len(rows) > SHOWN:
        print(f"… and {len(rows) - SHOWN} more; --out FILE.csv writes all")


def _fit(columns: dict[str, list[str]]) -> None:
    """Make a table as narrow as the screen: sizes of files are left out, then long paths lose their middle."""
    from effssl.runtime.progress import screen_width

    paths = [key for key in PATHS if key in columns]

    def room() -> int:
        others = [max(map(len, (key, *cells))) for key, cells in columns.items() if key not in paths]
        return (screen_width() - 3 * len(columns) - 1 - sum(others)) // len(paths)  # 3 for a line and two spaces

    if max(len(text) for key in paths for text in columns[key]) > room():
        for key in SIZES:
            columns.pop(key, None)
    for key in paths:
        columns[key] = [_shortened(text, max(NARROWEST, room())) for text in columns[key]]


def _shortened(text: str, most: int) -> str:
    """A path without its middle; of its end, which tells more, twice as much is kept as of its beginning.

    >>> _shortened("holidays/2019/in the mountains/IMG_0001.jpg", 20)
    'holida…/IMG_0001.jpg'
    """
    start = (most - 1) // 3
    return text if len(text) <= most else f"{text[:start]}…{text[start + 1 - most :]}"
