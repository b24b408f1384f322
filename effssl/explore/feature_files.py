"""Features in files that other tools read: .parquet, .npz and .csv, written and read a few rows at a time.

parquet  columns path (or index), label where known, features (a list of fixed length)
npz      arrays of the same names
csv      columns path (or index), label where known, f0, f1, …; what the others hold inside stands in FILE.csv.json
"""

from __future__ import annotations

import csv
import json
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from effssl.runtime.errors import RequestError
from effssl.runtime.files import made_beside, write_atomically
from effssl.runtime.progress import counter

FORMAT = "effssl features 1"
SUFFIXES = (".parquet", ".npz", ".csv")
AT_ONCE = 1 << 22  # numbers held at a time: 16 MiB


@dataclass(frozen=True)
class About:
    """Where features come from: stored with them."""

    encoder: str  # its name
    encoder_digest: str
    images_digest: str
    dim: int
    numbered: bool  # images have numbers instead of paths
    unreadable: list[str] = field(default_factory=list)  # images that have no features

    def text(self, **more: int) -> str:
        """As a file holds it."""
        return json.dumps({"format": FORMAT} | more | asdict(self))


@dataclass(frozen=True)
class Embedding:
    """Features of images, N×dim float32, memory-mapped; the names of the images, and their labels where known."""

    names: list[str]
    features: np.ndarray
    labels: list[str | None] | None = None
    about: About | None = None  # None in a file that somebody else wrote

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Embedding({len(self)} images × {self.features.shape[1]} features)"

    def label(self, row: int) -> str | None:
        """An image's label, where it is known."""
        return None if self.labels is None else self.labels[row]


def check_suffix(path: Path) -> None:
    """Refuse a file that features cannot be in, before anything slow."""
    if path.suffix not in SUFFIXES:
        raise RequestError(f"{path}: features are kept in files that end with {', '.join(SUFFIXES)}")
    if path.suffix == ".parquet":
        _parquet()


def _parquet() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise RequestError(".parquet files need pyarrow: pip install pyarrow; or use .npz or .csv") from None
    return pyarrow, pyarrow.parquet


def _spans(count: int, dim: int) -> Iterator[slice]:
    rows = max(1, AT_ONCE // max(1, dim))
    return (slice(start, min(start + rows, count)) for start in range(0, count, rows))


def beside_csv(path: Path) -> Path:
    """Where a csv file keeps what it cannot hold."""
    return path.with_name(f"{path.name}.json")


# ---------------------------------------------------------------------------------------------------------------
# Writing


def write_features(path: Path, made: Embedding) -> None:
    """Write a file of features at once: it is there complete, or not at all."""
    write = {".parquet": _write_parquet, ".npz": _write_npz, ".csv": _write_csv}[path.suffix]
    with made_beside(path) as file, counter(f"writing {path.name}", len(made)) as advance:
        write(file, made, advance)
        if path.suffix == ".csv" and made.about:  # a csv without it would seem to be somebody else's
            write_atomically(beside_csv(path), made.about.text(bytes=file.stat().st_size) + "\n")


def _key(made: Embedding) -> str:
    return "index" if made.about and made.about.numbered else "path"


def _write_parquet(file: Path, made: Embedding, advance: Callable[[int], None]) -> None:
    pa, pq = _parquet()
    key, dim = _key(made), made.features.shape[1]
    columns = [(key, pa.int64() if key == "index" else pa.string())]
    columns += [("label", pa.string())] if made.labels is not None else []
    columns += [("features", pa.list_(pa.float32(), dim))]
    schema = pa.schema(columns, {"effssl": made.about.text()} if made.about else None)
    with pq.ParquetWriter(file, schema, use_dictionary=["label"]) as writer:
        for span in _spans(len(made), dim):
            names = [int(name) for name in made.names[span]] if key == "index" else made.names[span]
            labels = [pa.array(made.labels[span], pa.string())] if made.labels is not None else []
            rows = pa.FixedSizeListArray.from_arrays(pa.array(np.array(made.features[span]).ravel()), dim)
            writer.write_batch(pa.record_batch([pa.array(names, columns[0][1]), *labels, rows], schema))
            advance(len(names))


def _write_npz(file: Path, made: Embedding, advance: Callable[[int], None]) -> None:
    numbers = _key(made) == "index"
    arrays = {_key(made): np.array(made.names, dtype=np.int64 if numbers else np.str_)}
    if made.labels is not None:
        arrays["label"] = np.array([label or "" for label in made.labels])
    if made.about:
        arrays["about"] = np.array(made.about.text())
    with file.open("wb") as out:  # given a name, NumPy would add a suffix to it
        np.savez(out, **arrays, features=made.features)  # type: ignore[arg-type]
    advance(len(made))


def _write_csv(file: Path, made: Embedding, advance: Callable[[int], None]) -> None:
    dim = made.features.shape[1]
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow([_key(made), *(["label"] if made.labels is not None else []), *(f"f{i}" for i in range(dim))])
        for span in _spans(len(made), dim):
            labels = [[label or ""] for label in made.labels[span]] if made.labels is not None else None
            for i, (name, row) in enumerate(zip(made.names[span], made.features[span].tolist(), strict=True)):
                # Nine digits give back every float32 exactly.
                writer.writerow([name, *(labels[i] if labels else []), *(f"{value:.9g}" for value in row)])
            advance(span.stop - span.start)


# ---------------------------------------------------------------------------------------------------------------
# Reading


def read_about(path: Path) -> About | None:
    """Where the features of a file come from; None if it does not say so."""
    try:
        if path.suffix == ".parquet":
            text = (_parquet()[1].read_schema(path).metadata or {})[b"effssl"].decode()
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                text = str(file["about"])
        else:
            text = beside_csv(path).read_text(encoding="utf-8")
        values = json.loads(text)
        if values.pop("bytes", None) not in (None, path.stat().st_size):
            return None  # another csv has taken its place
        return About(**{key: value for key, value in values.items() if key != "format"})
    except RequestError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile):
        return None


def read_features(source: str | Path) -> Embedding:
    """Read a file of features; the features themselves stay on the disk, where they are looked up when needed."""
    path = Path(source).expanduser()
    check_suffix(path)
    if not path.is_file():
        raise RequestError(f"no features at {path}; make them with effssl embed RUN --data FOLDER --out {path.name}")
    read = {".parquet": _read_parquet, ".npz": _read_npz, ".csv": _read_csv}[path.suffix]
    # The folder's names go at once, the memory map keeps the data until nobody uses it.
    with tempfile.TemporaryDirectory(prefix="effssl-") as folder:
        try:
            names, labels, features = read(path, Path(folder))
        except (OSError, ValueError, KeyError, TypeError, csv.Error, zipfile.BadZipFile) as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(f"{path} is not a file of features: {str(error).splitlines()[0]}") from None
    if features.ndim != 2 or features.dtype.kind != "f" or len(features) != len(names) or not len(names):
        raise RequestError(f"{path} is not a file of features: {len(names)} names, features of shape {features.shape}")
    return Embedding(names, features, labels, read_about(path))


Parts = tuple[list[str], list[str | None] | None, np.ndarray]


def mapped(file: Path, dim: int) -> np.ndarray:
    """A file of float32 numbers as an array N×dim, left on the disk."""
    return np.memmap(file, np.float32, "r").reshape(-1, dim) if file.stat().st_size else np.empty((0, dim), np.float32)


def _which(columns: Sequence[str], path: Path) -> str:
    key = next((name for name in ("path", "index") if name in columns), None)
    if key is None:
        raise RequestError(f"{path} is not a file of features: it has neither a column path nor index")
    return key


def _read_parquet(path: Path, folder: Path) -> Parts:
    pa, pq = _parquet()
    file = pq.ParquetFile(path)
    key = _which(file.schema_arrow.names, path)
    kind = file.schema_arrow.field("features").type if "features" in file.schema_arrow.names else None
    if not any(kind is not None and is_(kind) for is_ in (pa.types.is_list, pa.types.is_fixed_size_list)):
        raise RequestError(f"{path} is not a file of features: it has no column features with lists of numbers")
    wanted = [name for name in (key, "label", "features") if name in file.schema_arrow.names]
    names: list[str] = []
    labels: list[str | None] = []
    dim = None
    with (folder / "features").open("wb") as out:
        # An unknown width is at most a few thousand: so many rows are a few megabytes.
        for batch in file.iter_batches(batch_size=AT_ONCE >> 11, columns=wanted):
            names += map(str, batch.column(key).to_pylist())
            labels += batch.column("label").to_pylist() if "label" in wanted else []
            dim = _append(out, np.asarray(batch.column("features").flatten()), batch.num_rows, dim)
    return names, labels or None, mapped(folder / "features", dim or 1)


def _append(out: BinaryIO, values: np.ndarray, rows: int, dim: int | None) -> int:
    width = values.size // max(1, rows)
    if width * rows != values.size or not width or dim not in (None, width):
        raise RequestError("features of different lengths are not features of one encoder")
    out.write(np.ascontiguousarray(values, np.float32).data)
    return width


def _read_npz(path: Path, folder: Path) -> Parts:
    with np.load(path, allow_pickle=False) as file:
        names = [str(name) for name in file[_which(file.files, path)].tolist()]
        labels = [label or None for label in file["label"].tolist()] if "label" in file.files else None
    with zipfile.ZipFile(path) as archive:
        archive.extract("features.npy", folder)
    return names, labels, np.load(folder / "features.npy", mmap_mode="r", allow_pickle=False)


def _read_csv(path: Path, folder: Path) -> Parts:
    names: list[str] = []
    labels: list[str | None] = []
    with path.open(newline="", encoding="utf-8") as file, (folder / "features").open("wb") as out:
        lines = csv.reader(file)
        header = next(lines, [])
        key = header.index(_which(header, path))
        label = header.index("label") if "label" in header else None
        columns = [i for i, name in enumerate(header) if name[:1] == "f" and name[1:].isdigit()]
        if not columns:
            raise RequestError(f"{path} is not a file of features: it has no columns f0, f1, …")
        while some := list(islice(lines, max(1, AT_ONCE // 8 // len(columns)))):
            if any(len(line) != len(header) for line in some):
                raise RequestError(f"{path} is damaged: a line has not {len(header)} fields")
            names += [line[key] for line in some]
            labels += [line[label] or None for line in some] if label is not None else []
            out.write(np.array([[line[i] for i in columns] for line in some], np.float32).data)
    return names, labels if label is not None else None, mapped(folder / "features", len(columns))
