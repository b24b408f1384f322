"""Where images come from: `open_data("cifar10")`, a folder, an array file or the embedded digits."""

from __future__ import annotations

from pathlib import Path

from effssl.data.sets import ArrayImages, Data, FolderImages, Images, PackedImages, is_pack
from effssl.runtime.errors import RequestError, did_you_mean

NAMED = ("cifar10", "cifar100", "digits")

__all__ = ["NAMED", "ArrayImages", "Data", "FolderImages", "Images", "PackedImages", "open_data"]


def open_data(spec: str, labels: str = "auto", subset: int = 0, classes: str = "") -> Data:
    """Open a data set by name or path: its training images, its test images if it has any.

    >>> data = open_data("digits")
    >>> len(data.train), len(data.test), data.train.classes[3]
    (1437, 360, '3')
    """
    path = Path(spec).expanduser()
    if spec == "digits":
        from effssl.data.digits import load_digits

        data = load_digits()
    elif spec in ("cifar10", "cifar100"):
        from effssl.data.cifar import load_cifar

        data = load_cifar(spec)
    elif spec and path.suffix in (".npy", ".npz"):
        from effssl.data.arrays import load_arrays

        data = load_arrays(path)
    elif spec and is_pack(path):
        from effssl.data.pack import open_pack

        data = open_pack(path, labels)
    elif spec and path.is_dir():
        from effssl.data.folder import class_names, load_folder

        data = load_folder(path, labels, class_names(classes) if classes else None)
    elif not spec:
        raise RequestError(f"--data is needed: {', '.join(NAMED)}, a folder of images, a pack or a .npy/.npz file")
    elif path.exists():
        raise RequestError(f"{spec} is neither a folder of images nor a .npy/.npz file")
    else:
        hint = did_you_mean(spec, NAMED)
        raise RequestError(f"no data set or folder named {spec!r}{hint}; known sets: {', '.join(NAMED)}")
    if classes and (spec in NAMED or not path.is_dir() or is_pack(path)):
        raise RequestError(f"--classes chooses sub-folders; {spec} is not a folder")
    if subset:
        data = data.with_subset(subset)
    return data
