"""The eleven data sets of the transfer protocol, each with its own split and metric, through torchvision.

Where torchvision's set is not the protocol's (Caltech-101, SUN397), the split is made by its rule from the folder.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from effssl.data import Data, open_data
from effssl.data.cifar import LAYOUT, UNREADABLE, data_folder, read_layout, verify
from effssl.data.cifar import as_data as as_data
from effssl.data.folder import load_folder, upright_rgb
from effssl.data.sets import FolderImages, Images
from effssl.data.voc import read_voc
from effssl.runtime.errors import RequestError
from effssl.runtime.randomness import generator

TIMEOUT = 10.0  # seconds without an answer


@dataclass(frozen=True)
class TransferSet:
    """Images to fit on, to choose C by (None: a fifth of the fit images) and to report; how, and by which split."""

    fit: Images | Dataset
    val: Images | Dataset | None
    test: Images | Dataset
    metric: str = "accuracy"
    split: str = "torchvision's"
    whole: bool = True  # a published set: every picture must be read


class Pictures(Dataset):
    """Items (picture, label) of a set as they are; wraps torchvision's sets and lists of VOC images."""

    def __init__(self, items: Any, label: Callable[[Any], Any] = int) -> None:
        self.items, self.label = items, label

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> tuple[Any, Tensor]:
        picture, label = self.items[i]
        return upright_rgb(picture), torch.as_tensor(self.label(label))


def picture_name(source: Any, i: int) -> str:
    """Which file an item is read from, for a message; its number where the set does not tell."""
    items = getattr(source, "items", source)
    for field in ("images", "_image_files", "_images", "_samples"):  # VocImages, and torchvision's several names
        if known := getattr(items, field, None):
            found = known[i][0] if isinstance(known[i], tuple) else known[i]
            return str(getattr(found, "path", found))
    return f"picture {i}"


# ---------------------------------------------------------------------------------------------------------------
# The sets


def _parts(name: str, root: Path, download: bool, *splits: str, **more: Any) -> list[Pictures]:
    """Splits of a torchvision set."""
    import torchvision

    kind = getattr(torchvision.datasets, name)
    with _reachable(name, root):
        return [Pictures(kind(root, split=split, download=download, **more)) for split in splits]


@contextmanager
def _reachable(name: str, root: Path) -> Iterator[None]:
    """Downloads that hang end after some seconds; what is missing or broken becomes one line."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        yield
    except (RuntimeError, OSError, ValueError, KeyError, ImportError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RequestError(f"{name} is not ready under {root} ({reason}); put it there, or try --download") from None
    finally:
        socket.setdefaulttimeout(before)


def _cifar(name: str) -> Callable[..., TransferSet]:
    def make(root: Path, download: bool, seed: int) -> TransferSet:
        data = _cifar_below(name, root)
        if data is None:
            own = data_folder()
            there = [own / f"{name}.npz", own / LAYOUT[name][0], own / f"cifar-{name[5:]}-python.tar.gz"]
            if not download and not any(path.exists() for path in there):
                raise RequestError(f"{name} is not ready under {root} or {own}; put it there, or try --download")
            data = open_data(name)
        assert data.test is not None
        return TransferSet(data.train, None, data.test, split="the original")

    return make


def _cifar_below(name: str, root: Path) -> Data | None:
    """CIFAR as effssl stores it, or in its original layout (torchvision's too), if it lies in a folder."""
    stored, layout = root / f"{name}.npz", root / LAYOUT[name][0]
    try:
        if stored.is_file():
            with np.load(stored, allow_pickle=False) as file:
                return as_data(name, dict(file))
        if not layout.is_dir():
            return None
        arrays = read_layout(name, lambda file: (layout / file).read_bytes())
        verify(name, arrays)
        return as_data(name, arrays)
    except UNREADABLE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RequestError(f"{name} under {root} is damaged: {reason}") from None


def _flowers(root: Path, download: bool, seed: int) -> TransferSet:
    fit, val, test = _parts("Flowers102", root, download, "train", "val", "test")
    return TransferSet(fit, val, test, "mean per class")


def _aircraft(root: Path, download: bool, seed: int) -> TransferSet:
    fit, val, test = _parts("FGVCAircraft", root, download, "train", "val", "test")
    return TransferSet(fit, val, test, "mean per class")


def _dtd(root: Path, download: bool, seed: int) -> TransferSet:
    fit, val, test = _parts("DTD", root, download, "train", "val", "test", partition=1)
    return TransferSet(fit, val, test, split="torchvision's, 1 of 10")


def _two(kind: str, metric: str, first: str = "train") -> Callable[..., TransferSet]:
    def make(root: Path, download: bool, seed: int) -> TransferSet:
        train, test = _parts(kind, root, download, first, "test")
        return TransferSet(train, None, test, metric)

    return make


def _cars(root: Path, download: bool, seed: int) -> TransferSet:
    """The authors' files as torchvision reads them, or, as most copies come, train/ and test/ of class folders."""
    folder = root / "stanford_cars"
    if (folder / "train").is_dir() and (folder / "test").is_dir():
        data = load_folder(folder, "folders")
        refuse_unread("cars", data.unreadable)
        assert data.test is not None
        return TransferSet(data.train, None, data.test, split="train/ and test/ of the folder")
    if not (folder / "devkit").is_dir():
        raise RequestError(
            f"cars is not ready: its authors' address is gone. Put a copy into {folder}: devkit/, cars_train/ and "
            "cars_test/ as the authors had it, or train/ and test/ with a folder per class"
        )
    train, test = _parts("StanfordCars", root, False, "train", "test")
    return TransferSet(train, None, test)


def _caltech(root: Path, download: bool, seed: int) -> TransferSet:
    import torchvision

    folder = root / "caltech101" / "101_ObjectCategories"
    if download and not folder.is_dir():
        with _reachable("Caltech101", root):
            torchvision.datasets.Caltech101(str(root), download=True)
    images = _class_folders("Caltech101", folder)
    assert images.labels is not None
    g, train = generator(seed, "caltech101"), []
    for label in range(len(images.classes)):
        rows = (images.labels == label).nonzero().squeeze(1)
        train.append(rows[torch.randint(len(rows), (30,), generator=g)].unique())
    chosen = torch.cat(train)
    rest = torch.ones(len(images), dtype=torch.bool)
    rest[chosen] = False
    split = f"30 draws with replacement per class, background class kept, seed {seed}"
    return TransferSet(images.select(chosen), None, images.select(rest.nonzero().squeeze(1)), "mean per class", split)


def _sun397(root: Path, download: bool, seed: int) -> TransferSet:
    folder = root / "SUN397"
    if download and not folder.is_dir():
        import torchvision

        with _reachable("SUN397", root):
            torchvision.datasets.SUN397(str(root), download=True)
    lists = [folder / "Training_01.txt", folder / "Testing_01.txt"]
    if not (folder / "ClassName.txt").is_file():
        raise RequestError(
            f"SUN397 is not ready under {root} (no SUN397/ClassName.txt); put it there, or try --download"
        )
    classes = (folder / "ClassName.txt").read_text().split()
    data = load_folder(folder)
    images = data.train
    assert isinstance(images, FolderImages)
    names = [f"/{path.relative_to(folder).as_posix()}" for path in images.paths]
    position = {name: i for i, name in enumerate(classes)}
    labels = torch.tensor([position.get(name.rsplit("/", 1)[0], -1) for name in names])
    images = FolderImages(images.paths, images.sizes, labels, classes)
    if all(path.is_file() for path in lists):
        row = {name: i for i, name in enumerate(names) if labels[i] >= 0}
        wanted = [path.read_text().split() for path in lists]
        for file, listed in zip(lists, wanted, strict=True):
            absent = [name for name in listed if name not in row]
            if absent or not listed:
                what = f"{len(absent)} images that are missing or unreadable, e.g. {absent[0]}" if absent else "nothing"
                raise RequestError(f"SUN397 under {root} is not complete: {file.name} lists {what}")
        train, test = (torch.tensor([row[name] for name in listed]) for listed in wanted)
        return TransferSet(images.select(train), None, images.select(test), split="the authors' 01")
    refuse_unread("SUN397", data.unreadable)
    g, parts = generator(seed, "sun397"), []
    for label in range(len(classes)):
        of_class = (labels == label).nonzero().squeeze(1)
        parts.append(of_class[torch.randperm(len(of_class), generator=g)[:100]])
    train, test = (torch.cat([p[a:b] for p in parts]) for a, b in ((0, 50), (50, 100)))
    split = f"50 and 50 per class, seed {seed} (the authors' lists are not there)"
    return TransferSet(images.select(train), None, images.select(test), split=split)


def _voc2007(root: Path, download: bool, seed: int) -> TransferSet:
    if download and not (root / "VOCdevkit" / "VOC2007").is_dir():
        import torchvision

        with _reachable("VOC2007", root):
            for part in ("trainval", "test"):
                torchvision.datasets.VOCDetection(str(root), "2007", part, download=True)
    places = [root, root / "VOC2007", root / "VOCdevkit" / "VOC2007"]
    year = next((p for p in places if p.resolve().name == "VOC2007" and (p / "ImageSets").is_dir()), None)
    if year is None:  # other years are other sets
        raise RequestError(f"VOC2007 is not ready under {root} (no VOCdevkit/VOC2007); put it there, or try --download")
    fit, val, test = (VocImages(read_voc(year, part)) for part in ("train", "val", "test"))
    return TransferSet(fit, val, test, "11-point mAP", "the original; difficult objects count as absent")


class VocImages(Dataset):
    """VOC images with twenty yes/no labels each."""

    def __init__(self, images: list) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Any, Tensor]:
        from effssl.data.folder import decode

        image, present = self.images[i], torch.zeros(20, dtype=torch.long)
        present[image.labels[~image.difficult]] = 1
        return decode(image.path), present


def _class_folders(name: str, folder: Path) -> FolderImages:
    if not folder.is_dir():
        raise RequestError(f"{name} is not ready (no {folder}); put it there, or try --download")
    data = load_folder(folder, "folders")
    refuse_unread(name, data.unreadable)
    assert isinstance(data.train, FolderImages)
    return data.train


def refuse_unread(name: str, lost: list[str]) -> None:
    """Of a published set every picture must be read: without some of them it is another set."""
    if lost:
        more = f", nor can {len(lost) - 1} more" if len(lost) > 1 else ""
        raise RequestError(f"{name}: {lost[0]} cannot be read{more}")


SETS: dict[str, Callable[[Path, bool, int], TransferSet]] = {
    "cifar10": _cifar("cifar10"),
    "cifar100": _cifar("cifar100"),
    "flowers": _flowers,
    "caltech101": _caltech,
    "aircraft": _aircraft,
    "dtd": _dtd,
    "cars": _cars,
    "food": _two("Food101", "accuracy"),
    "pets": _two("OxfordIIITPet", "mean per class", "trainval"),
    "sun397": _sun397,
    "voc2007": _voc2007,
}


def fifth(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to fit on and a random fifth to choose by, where a set has no validation images of its own."""
    order = np.random.RandomState(seed).permutation(count)
    return np.sort(order[count // 5 :]), np.sort(order[: count // 5])


def fingerprint(pixels: hashlib.blake2b, labels: Tensor) -> str:
    """A short digest of images as they were seen and of their labels."""
    pixels.update(labels.numpy().tobytes())
    return pixels.hexdigest()
