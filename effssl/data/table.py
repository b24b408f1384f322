"""A table of images, .csv, .tsv or .parquet: a column of paths, and if there are any, labels and splits.

Paths are relative to the table. A file is taken for what it holds, whatever it is called.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path

from effssl.data.dataset import Data
from effssl.data.folder import images_of
from effssl.data.formats import examine_all
from effssl.data.parts import SPLITS, divide
from effssl.runtime.errors import RequestError, did_you_mean
from effssl.runtime.progress import say
from effssl.runtime.reading import check_regular, describe, one_line, read_text

SUFFIXES = (".csv", ".tsv", ".parquet")
PATH_COLUMNS = ("path", "file", "image", "filename", "filepath", "image_path", "file_name")
LABEL_COLUMNS = ("label", "class")
SPLIT_COLUMNS = ("split",)
WANTED = (*PATH_COLUMNS, *LABEL_COLUMNS, *SPLIT_COLUMNS)

Columns = dict[str, list[str]]  # by name in small letters, a text per row; "" where a cell is empty


def is_table(spec: str) -> bool:
    """Whether a name is that of a table."""
    path = Path(spec).expanduser()
    return path.suffix.lower() in SUFFIXES and not path.is_dir()


def open_table(spec: str, labels: str = "auto") -> Data:
    """Open a table of images; its label column is used unless `labels` is none."""
    table = Path(os.path.abspath(Path(spec).expanduser()))
    if labels == "folders":
        raise RequestError(f"--labels folders is for folders of images; labels of {table} are its column label")
    columns = _read(table)
    named = _column(columns, PATH_COLUMNS)
    if named is None:
        found = one_line(", ".join(columns) or "nothing")
        raise RequestError(
            f"{table} has no column named {' or '.join(PATH_COLUMNS)}; found: {found}{_to_rename(columns)}"
        )
    if not named:
        raise RequestError(f"{table} has no rows")
    _refuse_empty(table, named, "path")
    label = None if labels == "none" else _labels(table, columns)
    split = _splits(table, columns)
    files = [table.parent / name for name in named]
    images, good = images_of(files, examine_all(files))
    if images is None:
        raise RequestError(f"none of the {len(files)} images of {table} can be read, e.g. {one_line(files[0])}")
    unreadable = [str(files[row]) for row in sorted(set(range(len(files))) - set(good))]
    return divide(table.stem, images, _pick(label, good), _pick(split, good), unreadable)


def _pick(values: list[str] | None, rows: list[int]) -> list[str] | None:
    return None if values is None else [values[row] for row in rows]


def _column(columns: Columns, names: Sequence[str]) -> list[str] | None:
    return next((columns[name] for name in names if name in columns), None)


def _to_rename(columns: Columns) -> str:
    """The column whose name is almost one of paths."""
    others = [name for name in columns if name not in WANTED]
    for name in others:
        if wanted := next((path for path in PATH_COLUMNS if did_you_mean(name, [path])), ""):
            return f" (rename {one_line(name)} to {wanted})"
    return ""


def _labels(table: Path, columns: Columns) -> list[str] | None:
    label = _column(columns, LABEL_COLUMNS)
    if label is None:
        near = next(filter(None, (did_you_mean(name, columns) for name in LABEL_COLUMNS)), "")
        if near:
            say(f"{table.name} has no column named {' or '.join(LABEL_COLUMNS)}{near}; its images have no labels")
        return None
    _refuse_empty(table, label, "label", "; fill it in, or use --labels none")
    return label


def _splits(table: Path, columns: Columns) -> list[str] | None:
    split = _column(columns, SPLIT_COLUMNS)
    if split is None:
        return None
    _refuse_empty(table, split, "split")
    split = [name.lower() for name in split]
    unknown = next((name for name in split if name not in SPLITS), None)
    if unknown is not None:
        hint = did_you_mean(unknown, SPLITS)
        raise RequestError(f"{table}: the split {one_line(unknown)!r} is none of {', '.join(SPLITS)}{hint}")
    return split


def _refuse_empty(table: Path, values: list[str], what: str, instead: str = "") -> None:
    if "" in values:
        raise RequestError(f"{table}: row {values.index('') + 1} below the header has no {what}{instead}")


def _read(table: Path) -> Columns:
    try:
        return _read_parquet(table) if table.suffix.lower() == ".parquet" else _read_text(table)
    except FileNotFoundError:
        raise RequestError(f"no such file: {table}") from None
    except (OSError, ValueError, csv.Error) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"{table} is not a readable table: {describe(error)}") from None


def _read_text(table: Path) -> Columns:
    text = read_text(table).removeprefix("\ufeff")
    first = text.partition("\n")[0]
    delimiter = "\t" if table.suffix.lower() == ".tsv" else ";" if ";" in first and "," not in first else ","
    lines = [line for line in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if line]
    if not lines:
        return {}
    header = [name.strip().lower() for name in lines[0]]
    return {
        name: [line[i].strip() if i < len(line) else "" for line in lines[1:]] if name in WANTED else []
        for i, name in enumerate(header)
    }


def _read_parquet(table: Path) -> Columns:
    check_regular(table)
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise RequestError(f"{table} needs pyarrow: pip install 'effssl[parquet]'; or use a .csv file") from None
    try:
        file = pyarrow.parquet.ParquetFile(table)
        columns: Columns = {name.lower(): [] for name in file.schema_arrow.names}
        wanted = [name for name in file.schema_arrow.names if name.lower() in WANTED]
        for name in wanted:
            if pyarrow.types.is_nested(file.schema_arrow.field(name).type):
                raise RequestError(f"{table}: the column {name} holds {file.schema_arrow.field(name).type}, not text")
        for name, column in zip(wanted, file.read(wanted).columns, strict=True):
            columns[name.lower()] = ["" if value is None else str(value).strip() for value in column.to_pylist()]
        return columns
    except pyarrow.ArrowException as error:
        raise ValueError(describe(error)) from None
