"""effssl pack FOLDER: decode once."""

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
    """Decode a folder of images once, for `effssl pretrain --data FOLDER.pack`; interrupted, it goes on when repeated.

    Given a finished pack instead, check every image's checksum.

    Args:
        folder: folder of images, or a finished pack to check
        out: folder to make; default FOLDER.pack
        short_side: larger images are shrunk to a shorter side of so many pixels; 0 keeps all as they are
        labels: sub-folders are labels: auto only in a train/–val/ or train/–test/ layout
        classes: pack only these class folders: imagenet100, or a text file with their names
        workers: processes that decode; −1 is one per core
    """
    from effssl.data import open_data
    from effssl.data.pack import pack

    made = pack(folder, out or None, short_side=short_side, labels=labels, classes=classes, workers=workers)
    data = open_data(str(made))
    counts = [len(part) for part in (data.train, data.test, data.held_out) if part is not None]
    size = (made / "pixels.bin").stat().st_size
    print(f"{made}: {' + '.join(map(str, counts))} images, {size / 1e6:,.0f} MB   next: effssl pretrain --data {made}")
