"""Feature files that other tools read: .parquet, .npz and .csv, written and read in chunks of rows.

parquet  columns path (or index), label where known, features (a list of fixed length)
npz      arrays of the same names
csv      columns path (or index), label where known, f0, f1, …; its metadata are in FILE.csv.json
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from effssl.runtime.errors import RequestError, Stopped
from effssl.runtime.files import atomic_path, write_atomically
from effssl.runtime.progress import progress_bar
from effssl.runtime.reading import checked_text, describe, opened_arrays, parse_json, read_start, read_text

FORMAT = "effssl features 1"
SUFFIXES = (".parquet", ".npz", ".csv")
CHUNK = 1 << 22  # values held in memory at a time: 16 MiB


@dataclass(frozen=True)
class Metadata:
    """Which encoder and which images features come from; stored with them."""

    encoder: str  # name of the architecture
    encoder_digest: str
    images_digest: str
    dim: int
    numbered: bool  # images have indices instead of paths
    unreadable: list[str] = field(default_factory=list)  # images without features

    def to_json(self, **extra: int) -> str:
        """As a file holds it."""
        return json.dumps({"format": FORMAT} | extra | asdict(self))


@dataclass(frozen=True)
class Embedding:
    """Features of images, N×dim float32, memory-mapped, with the images' names and, where known, labels."""

    names: list[str]
    features: np.ndarray
    labels: list[str | None] | None = None
    metadata: Metadata | None = None  # None for a file of another tool

    @property
    def numbered(self) -> bool:
        """Whether images have indices instead of paths."""
        return self.metadata is not None and self.metadata.numbered

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Embedding({len(self)} images × {self.features.shape[1]} features)"

    def label(self, row: int) -> str | None:
        """The label of an image, or None."""
        return None if self.labels is None else self.labels[row]


def check_suffix(path: Path) -> None:
    """Refuse a file of an unsupported format, before anything slow."""
    if path.suffix not in SUFFIXES:
        raise RequestError(f"{path}: feature files end with {', '.join(SUFFIXES)}")
    if path.suffix == ".parquet":
        import_pyarrow()


def import_pyarrow() -> tuple[Any, Any]:
    """pyarrow and its module parquet, or one line that says how to get them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise RequestError(".parquet files need pyarrow: pip install pyarrow; or use .npz or .csv") from None
    return pyarrow, pyarrow.parquet


def _chunks(count: int, dim: int) -> Iterator[slice]:
    rows = max(1, CHUNK // max(1, dim))
    return (slice(start, min(start + rows, count)) for start in range(0, count, rows))


def csv_metadata_path(path: Path) -> Path:
    """The file with the metadata of a .csv file."""
    return path.with_name(f"{path.name}.json")


def holds_metadata(path: Path) -> bool:
    """Whether a file is the metadata of a .csv file that effssl wrote, or began to write."""
    return FORMAT.encode() in read_start(path, 200)


# ---------------------------------------------------------------------------------------------------------------
# Writing


def write_features(path: Path, embedding: Embedding) -> None:
    """Write a feature file atomically."""
    write = {".parquet": _write_parquet, ".npz": _write_npz, ".csv": _write_csv}[path.suffix]
    with atomic_path(path) as file, progress_bar(f"writing {path.name}", len(embedding)) as advance:
        write(file, embedding, advance)
        if path.suffix == ".csv" and embedding.metadata:  # without it the .csv would seem to be another tool's
            write_atomically(csv_metadata_path(path), embedding.metadata.to_json(bytes=file.stat().st_size) + "\n")


def _key(embedding: Embedding) -> str:
    """Name of the column that identifies an image."""
    return "index" if embedding.numbered else "path"


def _write_parquet(file: Path, embedding: Embedding, advance: Callable[[int], None]) -> None:
    pa, pq = import_pyarrow()
    key, dim = _key(embedding), embedding.features.shape[1]
    columns = [(key, pa.int64() if key == "index" else pa.string())]
    columns += [("label", pa.string())] if embedding.labels is not None else []
    columns += [("features", pa.list_(pa.float32(), dim))]
    schema = pa.schema(columns, {"effssl": embedding.metadata.to_json()} if embedding.metadata else None)
    with pq.ParquetWriter(file, schema, use_dictionary=["label"]) as writer:
        for chunk in _chunks(len(embedding), dim):
            names = [int(name) for name in embedding.names[chunk]] if key == "index" else embedding.names[chunk]
            labels = [pa.array(embedding.labels[chunk], pa.string())] if embedding.labels is not None else []
            rows = pa.FixedSizeListArray.from_arrays(pa.array(np.array(embedding.features[chunk]).ravel()), dim)
            writer.write_batch(pa.record_batch([pa.array(names, columns[0][1]), *labels, rows], schema))
            advance(len(names))


def _write_npz(file: Path, embedding: Embedding, advance: Callable[[int], None]) -> None:
    numbers = _key(embedding) == "index"
    arrays = {_key(embedding): np.array(embedding.names, dtype=np.int64 if numbers else np.str_)}
    if embedding.labels is not None:
        arrays["label"] = np.array([label or "" for label in embedding.labels])
    if embedding.metadata:
        arrays["metadata"] = np.array(embedding.metadata.to_json())
    with file.open("wb") as out:  # given a path, NumPy would add a suffix
        np.savez(out, **arrays, features=embedding.features)  # type: ignore[arg-type]
    advance(len(embedding))


def _write_csv(file: Path, embedding: Embedding, advance: Callable[[int], None]) -> None:
    dim = embedding.features.shape[1]
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        label_column = ["label"] if embedding.labels is not None else []
        writer.writerow([_key(embedding), *label_column, *(f"f{i}" for i in range(dim))])
        for chunk in _chunks(len(embedding), dim):
            labels = [[label or ""] for label in embedding.labels[chunk]] if embedding.labels is not None else None
            rows = zip(embedding.names[chunk], embedding.features[chunk].tolist(), strict=True)
            for i, (name, row) in enumerate(rows):
                # Nine digits represent every float32 exactly.
                writer.writerow([name, *(labels[i] if labels else []), *(f"{value:.9g}" for value in row)])
            advance(chunk.stop - chunk.start)


# ---------------------------------------------------------------------------------------------------------------
# Reading


def read_metadata(path: Path) -> Metadata | None:
    """The metadata of a feature file; None for a file of another tool."""
    try:
        if path.suffix == ".parquet":
            text = (import_pyarrow()[1].read_schema(path).metadata or {})[b"effssl"].decode()
        elif path.suffix == ".npz":
            with opened_arrays(path) as file:
                text = str(file["metadata"])
        else:
            text = read_text(csv_metadata_path(path))
        values = parse_json(text)
        if values.pop("bytes", None) not in (None, path.stat().st_size):
            return None  # the .csv was replaced by another one
        found = Metadata(**{key: value for key, value in values.items() if key != "format"})
        texts = [found.encoder, found.encoder_digest, found.images_digest, *found.unreadable]
        return found if all(isinstance(text, str) for text in texts) and type(found.dim) is int else None
    except (RequestError, Stopped):
        raise
    except Exception:  # whatever it is, it is no file of effssl
        return None


def read_features(source: str | Path) -> Embedding:
    """Open a feature file; the features are memory-mapped."""
    path = Path(source).expanduser()
    check_suffix(path)
    if not path.is_file():
        raise RequestError(f"no feature file at {path}; write one: effssl embed RUN --data FOLDER --out {path.name}")
    read = {".parquet": _read_parquet, ".npz": _read_npz, ".csv": _read_csv}[path.suffix]
    # The temporary files are unlinked at once; their data live as long as the memory map.
    with tempfile.TemporaryDirectory(prefix="effssl-") as folder:
        try:
            names, labels, features = read(path, Path(folder))
        except (RequestError, Stopped):
            raise
        except Exception as error:  # damaged files make their libraries raise anything
            raise RequestError(f"{path} is not a feature file: {describe(error)}") from None
    if labels is not None and len(labels) != len(names):
        raise RequestError(f"{path} is not a feature file: {len(names)} names, but {len(labels)} labels")
    if (
        features.ndim != 2
        or features.dtype.kind != "f"
        or features.shape != (len(names), features.shape[-1])
        or not features.size
    ):
        raise RequestError(f"{path} is not a feature file: {len(names)} names, but features of shape {features.shape}")
    return Embedding(names, features, labels, read_metadata(path))


Columns = tuple[list[str], list[str | None] | None, np.ndarray]  # names, labels, features


def memory_map(file: Path, dim: int) -> np.ndarray:
    """A file of float32 values as a memory-mapped array N×dim."""
    return np.memmap(file, np.float32, "r").reshape(-1, dim) if file.stat().st_size else np.empty((0, dim), np.float32)


def _key_column(columns: Sequence[str], path: Path) -> str:
    key = next((name for name in ("path", "index") if name in columns), None)
    if key is None:
        raise RequestError(f"{path} is not a feature file: it has neither a column path nor a column index")
    return key


def _read_parquet(path: Path, folder: Path) -> Columns:
    pa, pq = import_pyarrow()
    file = pq.ParquetFile(path)
    key = _key_column(file.schema_arrow.names, path)
    kind = file.schema_arrow.field("features").type if "features" in file.schema_arrow.names else None
    if not any(kind is not None and is_(kind) for is_ in (pa.types.is_list, pa.types.is_fixed_size_list)):
        raise RequestError(f"{path} is not a feature file: it has no column features of lists of numbers")
    wanted = [name for name in (key, "label", "features") if name in file.schema_arrow.names]
    names: list[str] = []
    labels: list[str | None] = []
    dim = None
    with (folder / "features").open("wb") as out:
        # The dimension is not known yet; at a few thousand values per row this is a few megabytes.
        for batch in file.iter_batches(batch_size=CHUNK >> 11, columns=wanted):
            names += map(str, batch.column(key).to_pylist())
            labels += batch.column("label").to_pylist() if "label" in wanted else []
            dim = _append(out, np.asarray(batch.column("features").flatten()), batch.num_rows, dim)
    return names, labels or None, memory_map(folder / "features", dim or 1)


def _append(out: BinaryIO, values: np.ndarray, rows: int, dim: int | None) -> int:
    width = values.size // max(1, rows)
    if width * rows != values.size or not width or dim not in (None, width):
        raise RequestError("the rows of features have different lengths")
    out.write(np.ascontiguousarray(values, np.float32).data)
    return width


def _read_npz(path: Path, folder: Path) -> Columns:
    with opened_arrays(path) as file:
        keys = checked_text(file[_key_column(file.files, path)])
        names = [str(name) for name in np.atleast_1d(keys).tolist()]
        label = checked_text(file["label"]) if "label" in file.files else None
        labels = None if label is None else [some or None for some in np.atleast_1d(label).tolist()]
        assert file.zip is not None  # it is open
        file.zip.extract("features.npy", folder)
    return names, labels, np.load(folder / "features.npy", mmap_mode="r", allow_pickle=False)


def _read_csv(path: Path, folder: Path) -> Columns:
    names: list[str] = []
    labels: list[str | None] = []
    with path.open(newline="", encoding="utf-8") as file, (folder / "features").open("wb") as out:
        lines = csv.reader(file)
        header = next(lines, [])
        key = header.index(_key_column(header, path))
        label = header.index("label") if "label" in header else None
        columns = [i for i, name in enumerate(header) if name[:1] == "f" and name[1:].isdigit()]
        if not columns:
            raise RequestError(f"{path} is not a feature file: it has no columns f0, f1, …")
        while rows := list(islice(lines, max(1, CHUNK // 8 // len(columns)))):
            if any(len(line) != len(header) for line in rows):
                raise RequestError(f"{path} is damaged: a line does not have {len(header)} fields")
            names += [line[key] for line in rows]
            labels += [line[label] or None for line in rows] if label is not None else []
            out.write(np.array([[line[i] for i in columns] for line in rows], np.float32).data)
    return names, labels if label is not None else None, memory_map(folder / "features", len(columns))
