"""effssl pack: decode a folder of images once."""

from __future__ import annotations

from typing import Literal


def pack(
    folder: str,
    /,
    out: str = "",
    short_side: int = 256,
    labels: Literal["auto", "folders", "none"] = "auto",
    classes: str = "",
    workers: int = -1,
) -> None:
    """Decode a folder of images once, for `effssl pretrain --data FOLDER.pack`; repeated after an interruption, resume.

    Given a finished pack instead, verify every image's checksum.

    Args:
        folder: folder, table or archive of images, or a finished pack to verify
        out: folder to create; default FOLDER.pack
        short_side: larger images are resized to this many pixels on their shorter side; 0 keeps every size
        labels: sub-folders are labels: auto only in a train/–val/ or train/–test/ layout
        classes: pack only these class folders: imagenet100, or a text file with their names
        workers: processes that decode; −1 is one per core
    """
    from effssl.data import open_data
    from effssl.data.packing import pack

    path = pack(folder, out or None, short_side=short_side, labels=labels, classes=classes, workers=workers)
    data = open_data(str(path))
    counts = [len(split) for split in (data.train, data.test, data.held_out) if split is not None]
    size = (path / "pixels.bin").stat().st_size
    print(f"{path}: {' + '.join(map(str, counts))} images, {size / 1e6:,.0f} MB   next: effssl pretrain --data {path}")
