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

from effssl.data.cifar import LAYOUT, UNREADABLE, data_folder, data_of, open_cifar, read_layout, verify
from effssl.data.dataset import Data
from effssl.data.folder import FolderImages, load_folder
from effssl.data.formats import examine_all
from effssl.data.images import Images, hex_digest
from effssl.data.splits import pick_per_class
from effssl.data.voc import CLASSES, VocImage, read_voc
from effssl.runtime.errors import RequestError, Stopped
from effssl.runtime.randomness import generator
from effssl.runtime.reading import check_regular, describe, one_line, read_arrays, read_bytes, read_text

TIMEOUT = 10.0  # seconds without a response
MOST_CLASSES = 100_000
LISTS = (
    "flowers-102/*.mat", "fgvc-aircraft-2013b/data/*.txt", "dtd/dtd/labels/*.txt", "food-101/meta/*.json",
    "oxford-iiit-pet/annotations/*.txt", "stanford_cars/devkit/*.mat", "stanford_cars/*.mat",
)  # fmt: skip
"""Files that torchvision reads without a look at what they are."""


@dataclass(frozen=True)
class TransferSet:
    """Images to fit on, to choose C on (None: a fifth of the fit images) and to report; metric and split."""

    fit: Images
    val: Images | None
    test: Images
    metric: str = "accuracy"
    split: str = "torchvision's"
    whole: bool = True  # a published set: every image must be readable


@dataclass(frozen=True)
class PublishedImages(FolderImages):
    """Files that a published list names; the size of one that is missing or no image is 0×0."""

    def fingerprint(self) -> str:
        """A short digest of the files' bytes and labels: published sets have copies that differ."""
        digest = hashlib.blake2b(digest_size=8)
        for path in self.paths:
            digest.update(hashlib.blake2b(path.read_bytes(), digest_size=8).digest())
        return hex_digest(digest, self.labels)


def published(name: str, paths: list[Path], labels: Tensor, classes: list[str]) -> PublishedImages:
    """The files of a published list with their labels."""
    if not paths:
        raise RequestError(f"{name}: there are no images")
    odd = next((path for path in paths if "\0" in str(path)), None)
    if odd is not None:
        raise RequestError(f"{name}: its list names the file {one_line(repr(odd.name))}, which no file can be called")
    sizes = torch.tensor([about.size if about else (0, 0) for about in examine_all(paths)])
    return PublishedImages(paths, sizes, labels, classes)


# ---------------------------------------------------------------------------------------------------------------
# The sets


def _parts(name: str, root: Path, download: bool, *splits: str, **settings: Any) -> list[PublishedImages]:
    """Splits of a torchvision set."""
    import torchvision

    dataset = getattr(torchvision.datasets, name)
    parts = []
    for split in splits:
        with _reachable(name, root):
            _check_lists(root)
            # With this loader a set yields the paths of its images in place of their pixels.
            items = list(dataset(root, split=split, download=download, loader=Path, **settings))
        labels = torch.tensor([label for _, label in items])
        parts.append(published(f"{name} {split}", [path for path, _ in items], labels, _numbered(labels)))
    return parts


def _check_lists(root: Path) -> None:
    for file in (file for pattern in LISTS for file in root.glob(pattern)):
        check_regular(file)


def _numbered(labels: Tensor) -> list[str]:
    """Classes that have no names here."""
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < MOST_CLASSES:
        raise RequestError(f"the classes of a list are numbered from {labels.min()} to {labels.max()}; it is damaged")
    return [str(i) for i in range(int(labels.max()) + 1 if len(labels) else 0)]


@contextmanager
def _reachable(name: str, root: Path) -> Iterator[None]:
    """Limit the time of a download; whatever is missing or broken becomes an error of one line."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        yield
    except (RequestError, Stopped):
        raise
    except Exception as error:  # readers of torchvision and scipy raise anything for damaged files
        reason = f"{name} is not ready under {root} ({describe(error)})"
        raise RequestError(f"{reason}; put it there, or try --download") from None
    finally:
        socket.setdefaulttimeout(before)


def _cifar(name: str) -> Callable[..., TransferSet]:
    def opener(root: Path, download: bool, seed: int) -> TransferSet:
        data = _cifar_below(name, root)
        if data is None:
            own = data_folder()
            there = [own / f"{name}.npz", own / LAYOUT[name][0], own / f"cifar-{name[5:]}-python.tar.gz"]
            if not download and not any(path.exists() for path in there):
                raise RequestError(f"{name} is not ready under {root} or {own}; put it there, or try --download")
            data = open_cifar(name)
        assert data.test is not None
        return TransferSet(data.train, None, data.test, split="the original")

    return opener


def _cifar_below(name: str, root: Path) -> Data | None:
    """CIFAR as effssl stores it, or in its original layout (torchvision's too), if it lies in a folder."""
    stored, layout = root / f"{name}.npz", root / LAYOUT[name][0]
    try:
        if stored.is_file():
            return data_of(name, read_arrays(stored))
        if not layout.is_dir():
            return None
        arrays = read_layout(name, lambda file: read_bytes(layout / file))
        verify(name, arrays)
        return data_of(name, arrays)
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


def _food(root: Path, download: bool, seed: int) -> TransferSet:
    train, test = _parts("Food101", root, download, "train", "test")
    return TransferSet(train, None, test)


def _pets(root: Path, download: bool, seed: int) -> TransferSet:
    import torchvision

    with _reachable("OxfordIIITPet", root):
        _check_lists(root)
        for split in ("trainval", "test"):  # torchvision downloads and checks the lists, but cannot give paths
            torchvision.datasets.OxfordIIITPet(root, split, download=download)
    folder, parts = root / "oxford-iiit-pet", []
    for name, split in (("pets train", "trainval"), ("pets test", "test")):
        with _reachable("OxfordIIITPet", root):
            lines = read_text(folder / "annotations" / f"{split}.txt").splitlines()
            entries = [line.split() for line in lines]  # name, class from 1 on, species, breed
            labels = torch.tensor([int(entry[1]) - 1 for entry in entries])
        paths = [folder / "images" / f"{entry[0]}.jpg" for entry in entries]
        parts.append(published(name, paths, labels, _numbered(labels)))
    train, test = parts
    return TransferSet(train, None, test, "mean per class")


def _cars(root: Path, download: bool, seed: int) -> TransferSet:
    """The authors' files as torchvision reads them, or train/ and test/ of class folders, as most copies are."""
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
    if not (folder / "ClassName.txt").is_file():
        raise RequestError(
            f"SUN397 is not ready under {root} (no SUN397/ClassName.txt); put it there, or try --download"
        )
    with _reachable("SUN397", root):
        classes = read_text(folder / "ClassName.txt").split()
    data = load_folder(folder)
    names = [f"/{path.relative_to(folder).as_posix()}" for path in data.train.paths or []]
    position = {name: i for i, name in enumerate(classes)}
    labels = torch.tensor([position.get(name.rsplit("/", 1)[0], -1) for name in names])
    images = FolderImages(data.train.paths or [], data.train.sizes, labels, classes)
    lists = [folder / "Training_01.txt", folder / "Testing_01.txt"]
    if all(path.is_file() for path in lists):
        row = {name: i for i, name in enumerate(names) if labels[i] >= 0}
        train, test = (_listed_rows(path, row) for path in lists)
        return TransferSet(images.select(train), None, images.select(test), split="the authors' 01")
    refuse_unread("SUN397", data.unreadable)
    train, test = _halves(labels, generator(seed, "sun397"))
    split = f"50 and 50 per class, seed {seed} (the authors' lists are missing)"
    return TransferSet(images.select(train), None, images.select(test), split=split)


def _listed_rows(file: Path, row: dict[str, int]) -> Tensor:
    """Rows of the images that one of the authors' lists names."""
    with _reachable("SUN397", file.parent.parent):
        listed = read_text(file).split()
    absent = [name for name in listed if name not in row]
    if absent or not listed:
        what = f"{len(absent)} images that are missing or unreadable, e.g. {absent[0]}" if absent else "nothing"
        raise RequestError(f"SUN397 under {file.parent.parent} is not complete: {file.name} lists {what}")
    return torch.tensor([row[name] for name in listed])


def _halves(labels: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two times 50 random rows of each class; images without a class have the label -1."""
    known = (labels >= 0).nonzero().squeeze(1)
    picked = known[pick_per_class(labels[known], lambda count: 100, g)]
    counts = labels[picked].unique_consecutive(return_counts=True)[1]
    classes = picked.split(counts.tolist())
    return torch.cat([rows[:50] for rows in classes]), torch.cat([rows[50:] for rows in classes])


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
    fit, val, test = (_voc_images(part, read_voc(year, part)) for part in ("train", "val", "test"))
    return TransferSet(fit, val, test, "11-point mAP", "the original; difficult objects count as absent")


def _voc_images(part: str, images: list[VocImage]) -> PublishedImages:
    """VOC images with twenty yes/no labels each."""
    present = torch.zeros(len(images), len(CLASSES), dtype=torch.long)
    for row, image in enumerate(images):
        present[row, image.labels[~image.difficult]] = 1
    return published(f"voc2007 {part}", [image.path for image in images], present, list(CLASSES))


def _class_folders(name: str, folder: Path) -> Images:
    if not folder.is_dir():
        raise RequestError(f"{name} is not ready (no {folder}); put it there, or try --download")
    data = load_folder(folder, "folders")
    refuse_unread(name, data.unreadable)
    return data.train


def refuse_unread(name: str, lost: list[str]) -> None:
    """Refuse a published set with images that cannot be read: without them it is another set."""
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
    "food": _food,
    "pets": _pets,
    "sun397": _sun397,
    "voc2007": _voc2007,
}


def fifth(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to fit on and a random fifth to choose C on, where a set has no validation images of its own."""
    order = np.random.RandomState(seed).permutation(count)
    return np.sort(order[count // 5 :]), np.sort(order[: count // 5])
