"""Images with boxes in the layout of PASCAL VOC. Everingham et al. 2010."""

from __future__ import annotations

import hashlib
import math
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from effssl.runtime.errors import RequestError, did_you_mean
from effssl.runtime.progress import progress_bar
from effssl.runtime.reading import read_bytes, read_text

CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
LAYOUT = ("Annotations", "JPEGImages", "ImageSets/Main")


@dataclass(frozen=True, eq=False)
class VocImage:
    """One image and its objects; boxes are edges in pixels from the top left corner, so that x2 − x1 is the width."""

    path: Path
    boxes: Tensor  # N×4 float: x1, y1, x2, y2
    labels: Tensor  # N long: index into CLASSES
    difficult: Tensor  # N bool: what scores leave out


def read_voc(root: str | Path, lists: str, limit: int = 0) -> list[VocImage]:
    """Images of one or more comma-separated lists, of all years that have them; of each list the first `limit`."""
    years = find_years(Path(root).expanduser())
    names = [name.strip() for name in lists.split(",") if name.strip()]
    if not names:
        raise RequestError("name at least one image list of ImageSets/Main, e.g. trainval")
    if limit < 0:
        raise RequestError(f"limit is a number of images, or 0 for all, not {limit}")
    found = [entry for name in names for entry in _entries(years, name)[: limit or None]]
    images, unique = [], dict.fromkeys(found)  # lists may share images
    with progress_bar("reading annotations", len(unique)) as advance:
        for year, stem in unique:
            images.append(_read_image(year, stem))
            advance(1)
    return images


def find_years(root: Path) -> list[Path]:
    """The folders VOC<year>, wherever in the layout `root` is."""
    for candidates in ([root], sorted(root.glob("VOC*")), sorted(root.glob("VOCdevkit/VOC*"))):
        years = [folder for folder in candidates if all((folder / part).is_dir() for part in LAYOUT)]
        if years:
            return years
    raise RequestError(f"no VOC layout in {root}: it should hold VOCdevkit/VOC<year> with {', '.join(LAYOUT)}")


def fingerprint(images: Iterable[VocImage]) -> str:
    """A short digest of names, boxes, classes and flags."""
    digest = hashlib.blake2b(digest_size=8)
    for image in images:
        digest.update(f"{image.path.parent.parent.name}/{image.path.name}\n".encode())
        for values in (image.boxes, image.labels, image.difficult):
            digest.update(values.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _entries(years: list[Path], name: str) -> list[tuple[Path, str]]:
    """Year and file stem of each image in a list."""
    files = [(year, year / "ImageSets" / "Main" / f"{name}.txt") for year in years]
    files = [(year, file) for year, file in files if file.is_file()]
    if not files:
        known = {file.stem for year in years for file in (year / "ImageSets" / "Main").glob("*.txt")}
        general = sorted(stem for stem in known if "_" not in stem)  # VOC has one list per class beside these
        raise RequestError(
            f"no image list {name}.txt in ImageSets/Main of {', '.join(year.name for year in years)}"
            f"{did_you_mean(name, general)}; there is {', '.join(general) or 'none'}"
        )
    found = []
    for year, file in files:
        try:
            lines = read_text(file).splitlines()
        except (OSError, ValueError) as error:
            raise RequestError(f"{file} cannot be read as an image list: {error}") from None
        found += [(year, line.split()[0]) for line in lines if line.strip()]
    if not found:
        raise RequestError(f"{files[0][1]} lists no images")
    return found


class _PlainTree(ET.TreeBuilder):
    """Refuses a document type: annotations need none, and entities are declared there."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ValueError("it has a DOCTYPE, which annotations do not need")


def _read_image(year: Path, stem: str) -> VocImage:
    file, image = year / "Annotations" / f"{stem}.xml", year / "JPEGImages" / f"{stem}.jpg"
    if not image.is_file():
        raise RequestError(f"image {image} is missing")
    try:
        tree = ET.fromstring(read_bytes(file), ET.XMLParser(target=_PlainTree()))
        objects = [_read_object(node) for node in tree.findall("object")]
    except FileNotFoundError:
        raise RequestError(f"annotation {file} is missing") from None
    except (OSError, ValueError, LookupError, ET.ParseError) as error:
        raise RequestError(f"annotation {file} cannot be read: {error}") from None
    return VocImage(
        image,
        torch.tensor([box for box, _, _ in objects], dtype=torch.float32).reshape(-1, 4),
        torch.tensor([label for _, label, _ in objects], dtype=torch.long),
        torch.tensor([difficult for _, _, difficult in objects], dtype=torch.bool),
    )


def _read_object(node: ET.Element) -> tuple[list[float], int, bool]:
    name = (node.findtext("name") or "").strip()
    if name not in CLASSES:
        raise ValueError(f"{name!r} is not one of the 20 VOC classes{did_you_mean(name, CLASSES)}")
    corners = [node.findtext(f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")]
    if None in corners:
        raise ValueError(f"a {name} has no complete bndbox")
    x1, y1, x2, y2 = (float(corner or "") for corner in corners)
    # VOC counts pixels from 1 and includes the last one: as edges, the first ones lie one further to the top left.
    box = [x1 - 1, y1 - 1, x2, y2]
    if not (all(map(math.isfinite, box)) and box[0] < box[2] and box[1] < box[3]):
        raise ValueError(f"the box {x1:g} {y1:g} {x2:g} {y2:g} of a {name} is empty")
    return box, CLASSES.index(name), (node.findtext("difficult") or "0").strip() == "1"
