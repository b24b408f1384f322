"""Labels of some images in a CSV file with the columns file and label."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from effssl.data.table import PATH_COLUMNS
from effssl.explore.gallery import printable
from effssl.runtime.errors import RequestError, did_you_mean
from effssl.runtime.reading import describe, read_text

COLUMNS = ("file", "label")
FEWEST = 2  # images of a class: cross-validation trains with one and tests with the other


@dataclass(frozen=True)
class Labels:
    """The label of each labelled file, and where that was read."""

    files: dict[str, str]
    source: str

    def rows(self, names: Names) -> dict[int, str]:
        """The label of each labelled row."""
        found: dict[int, str] = {}
        for row, (file, label) in zip(names.rows(list(self.files), self.source), self.files.items(), strict=True):
            if found.setdefault(row, label) != label:
                raise RequestError(f"{self.source}: {file} has two labels, {found[row]} and {label}; keep one of them")
        return found


def read_labels(source: str | Path) -> Labels:
    """The label of each file of a CSV file; a line with an empty label is one that is not labelled yet."""
    path = Path(source).expanduser()
    try:
        lines = csv.DictReader(io.StringIO(read_text(path).removeprefix("\ufeff"), newline=""))
        header = list(lines.fieldnames or [])
        file_column = column_of_files(header)
        for column in (file_column, "label"):
            if column not in header:
                near = did_you_mean(column, header) or next(
                    (f" (is it {n}?)" for n in header if column in n.lower()), ""
                )
                raise RequestError(f"{path} has no column {column}{near}; its columns: {', '.join(header) or 'none'}")
        pairs = [((line[file_column] or "").strip(), (line["label"] or "").strip()) for line in lines]
    except FileNotFoundError:
        raise RequestError(f"no file of labels at {path}; it is a CSV file with the columns file and label") from None
    except RequestError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise RequestError(f"{path} is not a CSV file in UTF-8: {describe(error)}") from None
    found: dict[str, str] = {}
    for file, label in pairs:
        if file and label and found.setdefault(file, label) != label:
            raise RequestError(f"{path}: {file} has two labels, {found[file]} and {label}; keep one of them")
    return Labels(found, str(source))


def column_of_files(header: Sequence[str]) -> str:
    """The column that names files, as in a table of images.

    >>> column_of_files(["label", "path"]), column_of_files(["name"])
    ('path', 'file')
    """
    return next((name for name in PATH_COLUMNS if name in header), COLUMNS[0])


@dataclass(frozen=True)
class Names:
    """Names of images, by which files of a list are found: relative to their folder, absolute, or the bare name."""

    root: str  # "" where images have indices
    names: list[str]

    @classmethod
    def of(cls, names: Sequence[str], data: str | Path | None) -> Names:
        """Names relative to the folder of the data, or to the one that all images have in common."""
        folder = Path(data).expanduser() if data else None
        roots = [printable(os.path.abspath(folder))] if folder is not None and folder.is_dir() else []
        absolute = [os.path.isabs(name) for name in names]
        if all(absolute) or not (roots or any(absolute)):  # files of a pack are elsewhere
            roots.append(os.path.commonpath([os.path.dirname(name) for name in names]))
        inside = (root for root in roots if root and all(PurePath(name).is_relative_to(root) for name in names))
        return cls(next(inside, ""), list(names))

    def relative(self, name: str) -> str:
        """A name as a list of labels has it."""
        return PurePath(name).relative_to(self.root).as_posix() if self.root else name

    def rows(self, files: Sequence[str], source: str) -> list[int]:
        """The row of each file; files that are not there, or that may be several, are refused."""
        by_name = defaultdict(list)
        for row, name in enumerate(self.names):
            by_name[os.path.basename(name)].append(row)
        found = [self._matching(file, by_name.get(os.path.basename(file), [])) for file in files]
        missing = [file for file, rows in zip(files, found, strict=True) if not rows]
        if missing:
            near = did_you_mean(missing[0], [self.relative(name) for name in self.names])
            raise RequestError(
                f"{len(missing)} of {len(files)} files of {source} are not among the {len(self.names)} images, "
                f"first {missing[0]}{near}"
            )
        for file, rows in zip(files, found, strict=True):
            if len(rows) > 1:
                both = " and ".join(self.relative(self.names[row]) for row in rows[:2])
                raise RequestError(f"{source}: {file} may be {both}; write the path relative to the folder")
        return [rows[0] for rows in found]

    def _matching(self, file: str, rows: list[int]) -> list[int]:
        wanted = PurePath(os.path.normpath(file))
        exact = [row for row in rows if self.names[row] == os.path.join(self.root, wanted)]
        parts = wanted.parts
        return exact or [row for row in rows if PurePath(self.names[row]).parts[-len(parts) :] == parts]


def check_classes(labels: Sequence[str], source: str) -> None:
    """Refuse labels from which no classifier can be trained and cross-validated."""
    counts = Counter(labels)
    if len(counts) < 2:
        has = f"labels of one class only, {next(iter(counts))}" if counts else "no labels"
        raise RequestError(f"{source} has {has}; a classifier needs at least two classes")
    rare = [label for label, count in sorted(counts.items()) if count < FEWEST]
    if rare:
        others = f" (and {len(rare) - 1} more classes)" if len(rare) > 1 else ""
        raise RequestError(
            f"the class {rare[0]}{others} of {source} has only one image that can be read; "
            "cross-validation needs two: label another, or leave the class out"
        )
