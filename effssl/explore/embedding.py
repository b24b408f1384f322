"""Features of every image, in a file: never all in memory, and when it was interrupted it goes on.

While it is made, FILE.part beside it holds plan.json (which encoder, which images), features.part (what is done,
float32) and rows.part (a byte per image: 1 has features, 0 cannot be read).
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch

from effssl.explore.feature_files import (
    About,
    Embedding,
    check_suffix,
    mapped,
    read_about,
    read_features,
    write_features,
)
from effssl.explore.gallery import Encoding, Gallery, encoder_digest, open_encoder, open_gallery
from effssl.features.extract import feature_batches
from effssl.network.loaded import LoadedEncoder
from effssl.run import Run
from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.files import check_room, locked, sweep, write_atomically
from effssl.runtime.progress import counter, say

if TYPE_CHECKING:
    from typing_extensions import Unpack

Encoder = str | Path | Run | LoadedEncoder
Source = str | Path | Embedding
FORMAT = "effssl embed 1"
BATCH = 256
NAMED = 5  # files that could not be read are named, of more the rest is counted
PARTS = ("features.part", "rows.part", "plan.json", "lock")


def embed(
    run: Encoder,
    data: str | Path,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    **how: Unpack[Encoding],
) -> Embedding:
    """Features of all images of a folder (or another data set), on disk rather than in memory.

    Args:
        run: anything `effssl.load` takes, a Run, or an encoder that `effssl.load` gave
        data: folder of images, pack, array file or the name of a data set
        out: .parquet, .npz or .csv file to write; interrupted, the same call goes on
        overwrite: replace a file that is there
        how: labels, encoder, weights, image_size, device, batch, workers, as `effssl embed --help` explains them
    """
    if out is not None:
        return read_features(embed_file(run, data, out, overwrite=overwrite, **how)[0])
    encoder, gallery, about = _opened(run, data, how)
    with tempfile.TemporaryDirectory(prefix="effssl-") as folder:  # the memory map outlives the file's name
        return _encode(encoder, gallery, about, Path(folder), how)


def features_of(run: Encoder | None, data: str | Path | None, features: Source | None, how: Encoding) -> Embedding:
    """Features that were given or computed earlier, or else those that an encoder makes now."""
    if features is not None:
        if data is not None:
            raise RequestError("--features already says which images; leave out --data")
        if run is not None:
            raise RequestError("--features needs no RUN beside it: the encoder is not run again")
        return features if isinstance(features, Embedding) else read_features(features)
    if data is None:
        raise RequestError("which images? --data FOLDER, or --features with a file of effssl embed")
    return embed("" if run is None else run, data, **how)


def embed_file(
    run: Encoder,
    data: str | Path,
    out: str | Path,
    *,
    overwrite: bool = False,
    **how: Unpack[Encoding],
) -> tuple[Path, About, int]:
    """Write the features of all images to a file: its path, where its features come from, and how many it holds.

    A finished file of the same encoder and images is left as it is.
    """
    path = Path(out).expanduser()
    check_suffix(path)
    if path.is_dir():
        raise RequestError(f"{path} is a folder; --out names a file")
    if path.exists() and not overwrite and read_about(path) is None:
        raise RequestError(f"{path} exists and is not from effssl embed; choose another --out, or --overwrite")
    if overwrite or not path.exists():
        check_room(path.parent)
    encoder, gallery, about = _opened(run, data, how)
    folder = path.with_name(f"{path.name}.part")
    if path.exists() and not overwrite:
        found = read_about(path)
        if found is None or _origin(found) != _origin(about):
            raise RequestError(
                f"{path} holds features of another encoder or other images, or images have changed since; "
                "choose another --out, or --overwrite"
            )
        if _is_ours(folder):  # stopped just before its end
            with _held(folder):
                _remove(folder)
        say(f"{path} is finished: it holds the features of this encoder for these images")
        return path, found, len(gallery.names) + len(gallery.unreadable) - len(found.unreadable)
    plan = {"format": FORMAT, "batch": how.get("batch", BATCH), **_origin(about)}
    with _begun(folder, plan, overwrite):
        sweep(path.parent, path.name)
        made = _encode(encoder, gallery, about, folder, how)
        write_features(path, made)
        _remove(folder)
    assert made.about is not None
    return path, made.about, len(made)


def _opened(run: Encoder, data: str | Path, how: Encoding) -> tuple[LoadedEncoder, Gallery, About]:
    if how.get("batch", BATCH) < 1:
        raise RequestError(f"batch is {how['batch']}; it must be at least 1")
    encoder = open_encoder(run, how)
    gallery = open_gallery(data, how.get("labels", "auto"))
    name = str(encoder.about.get("encoder", ""))
    return encoder, gallery, About(name, encoder_digest(encoder), gallery.fingerprint(), encoder.dim, gallery.numbered)


def _origin(about: About) -> dict[str, str]:
    return {"encoder": about.encoder_digest, "images": about.images_digest}


def _is_ours(folder: Path) -> bool:
    plan = folder / "plan.json"
    return plan.is_file() and FORMAT.encode() in plan.read_bytes()[:200]


def _held(folder: Path) -> AbstractContextManager[None]:
    return locked(folder / "lock", f"{folder.stem} is being made", "choose another --out")


def _remove(folder: Path) -> None:
    """Take away what we made, and nothing else."""
    for name in PARTS:
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


@contextmanager
def _begun(folder: Path, plan: dict[str, Any], overwrite: bool) -> Iterator[None]:
    """Hold the folder of an embedding that is being made: a new one, or one that was begun with the same plan."""
    left = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if (folder.exists() and not folder.is_dir()) or (not _is_ours(folder) and left - {"lock"}):
        raise RequestError(f"{folder} is in the way: effssl embed did not make it; choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    with _held(folder):
        sweep(folder)
        kept = folder / "plan.json"
        if kept.is_file() and json.loads(kept.read_text()) != plan:
            if not overwrite:
                raise RequestError(
                    f"{folder} was begun with another encoder, other images or another --batch; "
                    "choose another --out, or --overwrite"
                )
            for name in ("features.part", "rows.part"):
                (folder / name).unlink(missing_ok=True)
        write_atomically(kept, json.dumps(plan))
        yield


def _encode(encoder: LoadedEncoder, gallery: Gallery, about: About, folder: Path, how: Encoding) -> Embedding:
    """Append the features of all images to those that are in the folder already."""
    batch, workers = how.get("batch", BATCH), how.get("workers", -1)
    total, dim = len(gallery), encoder.dim
    with (folder / "features.part").open("ab") as features, (folder / "rows.part").open("ab") as rows:
        done = _recover(folder, features, rows, gallery, batch, dim)
        if done:
            say(f"going on after {done} of {total} images")

        def commit(h: np.ndarray, readable: np.ndarray) -> None:
            for file, content in ((features, h), (rows, readable)):  # a row stands for features that are safely there
                file.write(np.ascontiguousarray(content).data)
                file.flush()
                os.fsync(file.fileno())

        with torch.inference_mode(), counter("features", total) as advance:
            advance(done)
            start = 0
            for images in gallery.parts:
                skip = min(max(done - start, 0), len(images))
                rest = images.select(torch.arange(skip, len(images))) if skip else images
                if len(rest):
                    _append(encoder, rest, batch, workers, gallery.names[start + skip :], commit, advance)
                start += len(images)
    readable = np.fromfile(folder / "rows.part", np.uint8).astype(bool)
    unreadable = gallery.unreadable + [name for name, good in zip(gallery.names, readable, strict=True) if not good]
    if not readable.any():
        raise RequestError(f"none of the {total} images can be decoded, e.g. {unreadable[0]}")
    if unreadable:
        more = " …" if len(unreadable) > NAMED else ""
        say(f"without features, cannot be read ({len(unreadable)}): {', '.join(unreadable[:NAMED])}{more}")
    names = [name for name, good in zip(gallery.names, readable, strict=True) if good]
    labels = gallery.labels and [label for label, good in zip(gallery.labels, readable, strict=True) if good]
    origin = About(about.encoder, about.encoder_digest, about.images_digest, dim, about.numbered, unreadable)
    return Embedding(names, mapped(folder / "features.part", dim), labels, origin)


def _append(
    encoder: LoadedEncoder,
    images: Any,
    batch: int,
    workers: int,
    names: list[str],
    commit: Callable[[np.ndarray, np.ndarray], None],
    advance: Callable[[int], None],
) -> None:
    covered = 0
    for h, rows in feature_batches(encoder, images, batch=batch, workers=workers):
        if not bool(h.isfinite().all()):
            bad = names[int(rows[(~h.isfinite().all(1)).nonzero()[0, 0]])]
            raise RunFailed(f"the encoder's features are not finite, e.g. those of {bad}; is it well trained?")
        end = min(len(images), (int(rows[0]) // batch + 1) * batch)  # batches without a readable image are skipped
        readable = np.zeros(end - covered, np.uint8)
        readable[rows.numpy() - covered] = 1
        commit(h.numpy(), readable)
        advance(end - covered)
        covered = end
    commit(np.empty(0, np.float32), np.zeros(len(images) - covered, np.uint8))


def _recover(folder: Path, features: BinaryIO, rows: BinaryIO, gallery: Gallery, batch: int, dim: int) -> int:
    """How many images are done; what was left half-written, also of a batch, is cut off: batches stay the same."""
    readable = np.fromfile(folder / "rows.part", np.uint8)
    done = 0
    for images in gallery.parts:
        here = min(len(readable) - done, len(images))
        done += here if here == len(images) else here // batch * batch
        if here < len(images):
            break
    length = int(readable[:done].sum()) * dim * 4
    if features.seek(0, os.SEEK_END) < length:
        raise RunFailed(f"{folder} is damaged: features.part is too short; delete the folder and begin again")
    features.truncate(length)
    rows.truncate(done)
    return done
