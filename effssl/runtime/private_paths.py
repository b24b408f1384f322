"""Paths without their folders: what is shared (a report, a card, a published command) names a file, not where it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def strip_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings; of each string that is a path, the file name.

    >>> strip_values({"data": "/some/place/my pets", "epochs": 5})
    {'data': 'my pets', 'epochs': 5}
    >>> strip_values({"data": "/some/place/my pets + 2*/another/cats"})
    {'data': 'my pets + cats'}
    """
    return {key: _names(value) if isinstance(value, str) else value for key, value in values.items()}


def _names(value: str) -> str:
    return " + ".join(Path(part).name for part in value.split(" + "))


def strip_score_name(name: str) -> str:
    """The name of a score, `evaluation@data option=value …`, with file names in place of paths.

    >>> strip_score_name("transfer@/some/place/my pets/all grid=5")
    'transfer@all grid=5'
    >>> strip_score_name("knn@/some/place@work/k=1/pets classes=/some/place/two.txt")
    'knn@pets classes=two.txt'
    """
    parts = re.split(r"(?= \w+=)|(?<=;)", name)
    return "".join(re.sub(r"^( ?[\w-]+[@=])?[^;]*/", r"\1", part) for part in parts)


def strip_constant(text: str) -> str:
    """A constant of a protocol, where a slash may also be a division.

    >>> strip_constant("/some/place/train list.txt"), strip_constant("exp(cosine / 0.1)")
    ('train list.txt', 'exp(cosine / 0.1)')
    >>> strip_constant("split ~/place/train.txt")
    'split train.txt'
    """
    return Path(text).name if Path(text).is_absolute() else re.sub(r"(?<!\S)[~.]?/\S*/", "", text)


def strip_flag(value: str) -> str:
    """The value of a command line flag: a path, or a comma-separated list of `name=path`.

    >>> strip_flag("some/place/photos/"), strip_flag("cifar10=cifar10,flowers=/some/place/flowers")
    ('photos', 'cifar10=cifar10,flowers=flowers')
    """
    return ",".join(re.sub(r"[^=]*/", "", part.rstrip("/")) for part in value.split(","))


def strip_message(text: str, paths: Iterable[Path]) -> str:
    """A message without the parent folders of these paths.

    >>> strip_message("no folder named '/some/place/pets'", [Path("/some/place/pets")])
    "no folder named 'pets'"
    """
    parents = {f"{path.parent}/" for path in paths if path.parent.name}
    for parent in sorted(parents, key=len, reverse=True):
        text = re.sub(rf"(?<![\w/]){re.escape(parent)}", "", text)
    return text


def short_names(folders: Sequence[Path]) -> list[str]:
    """The last parts of each path, as many as distinguish different ones.

    >>> short_names([Path("/a/seed-0/run"), Path("/a/seed-1/run"), Path("/a/seed-1/run")])
    ['seed-0/run', 'seed-1/run', 'seed-1/run']
    """
    names, parts = [folder.name for folder in folders], 1
    while len(set(names)) < len(set(folders)):
        parts += 1
        names = ["/".join(folder.parts[-parts:]) for folder in folders]
    return names
