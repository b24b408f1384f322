"""Features of every image in a file: never all in memory, and resumed after an interruption.

During extraction the folder FILE.part holds plan.json (which encoder, which images), features.part (features so far,
float32) and rows.part (a byte per image: 1 has features, 0 cannot be decoded).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from effssl.data import Images
from effssl.explore.encoder import EncoderLike, FeatureOptions, encoder_digest, open_encoder, own_data
from effssl.explore.feature_files import (
    Embedding,
    Metadata,
    check_suffix,
    csv_metadata_path,
    holds_metadata,
    memory_map,
    read_features,
    read_metadata,
    write_features,
)
from effssl.explore.gallery import Gallery, open_gallery
from effssl.features.extract import feature_batches
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.append_store import AppendStore, claim_folder, has_plan, lock_folder
from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.files import check_output, check_replaceable, check_writable, remove_leftovers
from effssl.runtime.progress import progress_bar, say

if TYPE_CHECKING:
    from typing_extensions import Unpack

FeaturesLike = str | Path | Embedding
"""A feature file, or its content."""
FORMAT = "effssl embed 1"
BATCH = 256
LISTED = 5  # unreadable files that a message names
FEATURES, ROWS = "features.part", "rows.part"
FILES = (FEATURES, ROWS, "plan.json", "lock")


def embed(
    run: EncoderLike,
    data: str | Path | None = None,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    **options: Unpack[FeatureOptions],
) -> Embedding:
    """Features of all images of a folder (or another data set), on disk rather than in memory.

    Args:
        run: anything `effssl.load` takes, a Run, or an encoder that `effssl.load` returned
        data: folder of images, pack, array file or the name of a data set; by default the run's own
        out: .parquet, .npz or .csv file to write; after an interruption, the same call resumes
        overwrite: replace an existing file
        options: labels, encoder, weights, image_size, device, batch, workers, as `effssl embed --help` explains them
    """
    if out is not None:
        return read_features(embed_file(run, data, out, overwrite=overwrite, **options)[0])
    job = _open_job(run, data, options)
    with tempfile.TemporaryDirectory(prefix="effssl-") as folder:  # the memory map outlives the file's name
        return job.extract(Path(folder))


def load_embedding(
    run: EncoderLike | None, data: str | Path | None, features: FeaturesLike | None, options: FeatureOptions
) -> Embedding:
    """The given features, or else those of an encoder for some images."""
    if features is not None:
        if data is not None:
            raise RequestError("--features already determines the images; leave out --data")
        if run is not None:
            raise RequestError("--features needs no RUN: the encoder is not used")
        return features if isinstance(features, Embedding) else read_features(features)
    return embed("" if run is None else run, data, **options)


def embed_file(
    run: EncoderLike,
    data: str | Path | None,
    out: str | Path,
    *,
    overwrite: bool = False,
    **options: Unpack[FeatureOptions],
) -> tuple[Path, Metadata, int]:
    """Write the features of all images to a file; its path, its metadata and its number of images.

    A finished file of the same encoder and images is left as it is.
    """
    path = Path(out).expanduser()
    _check_out(path, overwrite)
    job = _open_job(run, data, options)
    folder = path.with_name(f"{path.name}.part")
    if path.exists() and not overwrite:
        found = _finished(path, job, folder)
        return path, found, len(job.gallery.names) + len(job.gallery.unreadable) - len(found.unreadable)
    differs = (
        "was begun with another encoder, other images or another --batch; choose another --out, or add --overwrite"
    )
    with claim_folder(folder, job.plan(), differs, discard=(FEATURES, ROWS) if overwrite else ()):
        remove_leftovers(path.parent, path.name)
        embedding = job.extract(folder)
        write_features(path, embedding)
        _remove(folder)
    assert embedding.metadata is not None
    return path, embedding.metadata, len(embedding)


def _check_out(path: Path, overwrite: bool) -> None:
    """Refuse a file that could not be written in the end, before anything slow."""
    check_suffix(path)
    if path.is_dir():
        raise RequestError(f"{path} is a folder; --out names a file")
    check_replaceable(path)
    if path.exists() and not overwrite and read_metadata(path) is None:
        raise RequestError(f"{path} exists and is not from effssl embed; choose another --out, or add --overwrite")
    if overwrite or not path.exists():
        check_writable(path.parent)
    if path.suffix == ".csv" and not holds_metadata(csv_metadata_path(path)):  # a file that is written, too
        check_output(csv_metadata_path(path), overwrite)


def _finished(path: Path, job: _Job, folder: Path) -> Metadata:
    """Metadata of an existing file, which must be of the same encoder and images."""
    found = read_metadata(path)
    if found is None or _origin(found) != _origin(job.metadata):
        raise RequestError(
            f"{path} holds features of another encoder or other images, or images have changed since; "
            "choose another --out, or add --overwrite"
        )
    if has_plan(folder, FORMAT):  # the earlier attempt was stopped just before its end
        with lock_folder(folder):
            _remove(folder)
    say(f"{path} is finished: it holds the features of this encoder for these images")
    return found


def _remove(folder: Path) -> None:
    """Delete the folder of a job; other files in it are an error."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


def _origin(metadata: Metadata) -> dict[str, str]:
    return {"encoder": metadata.encoder_digest, "images": metadata.images_digest}


def _open_job(run: EncoderLike, data: str | Path | None, options: FeatureOptions) -> _Job:
    batch = options.get("batch", BATCH)
    if batch < 1:
        raise RequestError(f"batch is {batch}; it must be at least 1")
    data = own_data(run) if data is None else data
    encoder = open_encoder(run, options)
    gallery = open_gallery(data, options.get("labels", "auto"))
    name = str(encoder.about.get("encoder", ""))
    metadata = Metadata(name, encoder_digest(encoder), gallery.fingerprint(), encoder.dim, gallery.numbered)
    return _Job(encoder, gallery, metadata, batch, options.get("workers", -1))


@dataclass(frozen=True)
class _Job:
    """Features of a gallery by an encoder, appended batch by batch to a store."""

    encoder: LoadedEncoder
    gallery: Gallery
    metadata: Metadata
    batch: int
    workers: int

    def plan(self) -> dict[str, Any]:
        """As plan.json holds it; another plan cannot be resumed."""
        return {"format": FORMAT, "batch": self.batch, **_origin(self.metadata)}

    def extract(self, folder: Path) -> Embedding:
        """Append the features of all images that the store in the folder does not have yet."""
        total, dim = len(self.gallery), self.encoder.dim

        def nbytes(readable: np.ndarray) -> int:
            return int(readable.sum()) * dim * 4  # float32

        with AppendStore(folder / FEATURES, folder / ROWS, np.dtype(np.uint8), nbytes) as store:
            done = self._complete(len(store.records()))
            store.truncate(done)
            if done:
                say(f"resuming after {done} of {total} images")
            with torch.inference_mode(), progress_bar("features", total) as advance:
                advance(done)
                for features, readable in self._batches(done):
                    store.append([features], readable)
                    advance(len(readable))
            readable = store.records().astype(bool)
        return self._embedding(memory_map(folder / FEATURES, dim), readable)

    def _complete(self, count: int) -> int:
        """How many of `count` images are in complete batches; the others are computed again, in the same batches."""
        done = 0
        for images in self.gallery.splits:
            here = min(count - done, len(images))
            if here < len(images):
                return done + here // self.batch * self.batch
            done += here
        return done

    def _batches(self, done: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each batch after the first `done` images: features, and which of its images have any (uint8)."""
        start = 0
        for images in self.gallery.splits:
            skipped = min(max(done - start, 0), len(images))
            rest = images.select(torch.arange(skipped, len(images))) if skipped else images
            names = self.gallery.names[start + skipped :]
            if len(rest):
                yield from self._split_batches(rest, names)
            start += len(images)

    def _split_batches(self, images: Images, names: list[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        covered = 0
        for h, rows in feature_batches(self.encoder, images, batch=self.batch, workers=self.workers):
            _check_finite(h, rows, names)
            # Batches in which no image can be decoded are not yielded: they belong to the next one.
            end = min(len(images), (int(rows[0]) // self.batch + 1) * self.batch)
            readable = np.zeros(end - covered, np.uint8)
            readable[rows.numpy() - covered] = 1
            yield h.numpy(), readable
            covered = end
        if covered < len(images):
            yield np.empty(0, np.float32), np.zeros(len(images) - covered, np.uint8)

    def _embedding(self, features: np.ndarray, readable: np.ndarray) -> Embedding:
        """Features with the names and labels of the images that could be decoded."""
        gallery = self.gallery
        kept = np.flatnonzero(readable).tolist()
        unreadable = gallery.unreadable + [gallery.names[row] for row in np.flatnonzero(~readable).tolist()]
        if not kept:
            raise RequestError(f"none of the {len(gallery)} images can be decoded, e.g. {unreadable[0]}")
        if unreadable:
            more = " …" if len(unreadable) > LISTED else ""
            say(f"skipped, cannot be read ({len(unreadable)}): {', '.join(unreadable[:LISTED])}{more}")
        names = [gallery.names[row] for row in kept]
        labels = gallery.labels and [gallery.labels[row] for row in kept]
        return Embedding(names, features, labels, replace(self.metadata, unreadable=unreadable))


def _check_finite(h: Tensor, rows: Tensor, names: list[str]) -> None:
    finite = h.isfinite().all(1)
    if not bool(finite.all()):
        example = names[int(rows[(~finite).nonzero()[0, 0]])]
        raise RunFailed(f"features are not finite, e.g. those of {example}; check how the encoder was trained")
