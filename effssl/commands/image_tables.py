"""Tables of images: on the screen, and in .csv, .json and .html files."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from effssl.commands.image_source import ExploreOptions
from effssl.runtime.errors import RequestError
from effssl.runtime.files import check_output, write_atomically

SUFFIXES = (".csv", ".json", ".html")
SHOWN = 50  # rows of a table on the screen; a file has them all
PATHS, SIZES = ("image", "nearest"), ("width", "height", "bytes")
NARROWEST = 20  # characters that a shortened path keeps
Row = dict[str, Any]


def columns_of(kind: type) -> list[str]:
    """Column names of a dataclass whose `name` is that of an image."""
    return ["image" if field.name == "name" else field.name for field in fields(kind)]


def row_of(item: Any) -> Row:
    """A row of a table from such a dataclass."""
    return dict(zip(columns_of(type(item)), asdict(item).values(), strict=True))


def check_table(options: ExploreOptions, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Refuse an --out that could not be written in the end, before anything slow."""
    if not options.out:
        return
    path = Path(options.out).expanduser()
    if path.suffix not in suffixes:
        known = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
        raise RequestError(f"--out is {options.out}; a table is written as {known}")
    check_output(path, options.overwrite)


def write_table(options: ExploreOptions, rows: Sequence[Row], title: str, columns: Sequence[str]) -> None:
    """Write a table to --out, if given; without rows it still has its columns."""
    if not options.out:
        return
    path = Path(options.out).expanduser()
    content: str | bytes
    if path.suffix == ".json":
        content = json.dumps(list(rows), indent=2, ensure_ascii=False) + "\n"
    elif path.suffix == ".html":
        content = _page(rows, title, options)
    elif path.suffix == ".txt":
        content = "".join(f"{row['image']}\n" for row in rows)
    else:
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        content = text.getvalue()
    write_atomically(path, content)
    print(f"written: {options.out}")


def _page(rows: Sequence[Row], title: str, options: ExploreOptions) -> bytes:
    """The images of a table as a view of the page that effssl browse writes."""
    from effssl.browsing.page import table_page
    from effssl.explore.gallery import open_gallery, real_path

    data = options.images() if rows and not real_path(rows[0]["image"]).is_file() else None
    view = type(options).__name__.removesuffix("Options").lower()
    return table_page(rows, title, view, open_gallery(data, options.labels) if data else None)


def show_table(rows: Sequence[Row], title: str, without: str = "", out: str = "") -> None:
    """Print the first rows of a table; `without` names a column to leave out, `out` the file that holds all rows."""
    from rich.markup import escape

    from effssl.runtime.progress import table

    if not rows:
        print(f"{title}: none")
        return
    # The common beginning of all paths is printed once.
    top = os.path.commonpath([os.path.dirname(row[key]) for row in rows for key in PATHS if key in row])
    top = f"{top}/" if top.strip("/") else ""

    def cell(key: str, value: Any) -> str:
        text = f"{value:.4f}" if isinstance(value, float) else "" if value is None else str(value)
        return text.removeprefix(top) if key in PATHS else text

    shown = rows[:SHOWN]
    columns = {key: [cell(key, row[key]) for row in shown] for key in rows[0] if key != without}
    columns = {key: cells for key, cells in columns.items() if any(cells)}  # e.g. labels, where none is known
    _fit(columns)
    heading = f"{escape(title)}{f' (below {escape(top)})' if top else ''}"
    lines = [[escape(cells[i]) for cells in columns.values()] for i in range(len(shown))]
    table(heading, columns, lines, left=(*PATHS, "label", "do"))
    if len(rows) > SHOWN:
        print(f"… and {len(rows) - SHOWN} more; {f'all are in {out}' if out else '--out FILE.csv writes all'}")


def _fit(columns: dict[str, list[str]]) -> None:
    """Make a table as narrow as the screen: drop the sizes of files, then shorten paths in their middle."""
    from effssl.runtime.progress import screen_width

    paths = [key for key in PATHS if key in columns]

    def room() -> int:
        others = [max(map(len, (key, *cells))) for key, cells in columns.items() if key not in paths]
        return (screen_width() - 3 * len(columns) - 1 - sum(others)) // len(paths)  # 3 for a line and two spaces

    if max(len(text) for key in paths for text in columns[key]) > room():
        for key in SIZES:
            columns.pop(key, None)
    for key in paths:
        columns[key] = [shortened(text, max(NARROWEST, room())) for text in columns[key]]


def shortened(path: str, length: int) -> str:
    """A path without its middle; of its end, which is more specific, twice as much is kept as of its beginning.

    >>> shortened("holidays/2019/in the mountains/IMG_0001.jpg", 20)
    'holida…/IMG_0001.jpg'
    """
    start = (length - 1) // 3
    return path if len(path) <= length else f"{path[:start]}…{path[start + 1 - length :]}"
