"""Tags of images in a CSV file with the columns file and label, which `effssl classify` reads."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from effssl.explore.labels import COLUMNS, Names, column_of_files, read_labels
from effssl.runtime.errors import RequestError
from effssl.runtime.files import check_replaceable, check_writable, write_atomically
from effssl.runtime.reading import read_text


def read_tags(path: Path, names: Names) -> dict[int, str]:
    """The tag of each row that has one; none where the file does not exist yet."""
    if path.is_dir() or not path.parent.is_dir():
        raise RequestError(f"{path} cannot be written; --tags names a file in an existing folder")
    check_writable(path.parent)
    check_replaceable(path)
    return read_labels(path).rows(names) if path.is_file() else {}


def write_tags(path: Path, tags: Mapping[int, str], names: Names) -> None:
    """Write the tags; other lines and columns of a file that exists stay."""
    header, lines = list(COLUMNS), []
    if path.is_file():
        reader = csv.DictReader(io.StringIO(read_text(path).removeprefix("\ufeff"), newline=""))
        header, lines = list(reader.fieldnames or header), list(reader)
    column = column_of_files(header)
    files = [(line[column] or "").strip() for line in lines]
    rows = iter(names.rows([file for file in files if file], str(path)))
    written = set()
    for line, file in zip(lines, files, strict=True):
        if file:
            row = next(rows)
            line["label"] = tags.get(row, "")
            written.add(row)
    lines += [{column: names.relative(names.names[row]), "label": tags[row]} for row in sorted(set(tags) - written)]
    text = io.StringIO()
    writer = csv.DictWriter(text, header, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(lines)
    write_atomically(path, text.getvalue())
