"""Views of a page: groups of images with captions, and what is asked of them."""

from __future__ import annotations

from dataclasses import dataclass

from effssl.runtime.errors import RequestError

MOST = 50_000  # images of a page


@dataclass(frozen=True)
class ViewOptions:
    """What the views of a page show."""

    threshold: float = 0.97  # similarity from which on two images are candidates for duplicates
    size: int = 100  # images of the diverse subset, at most
    top: int = 100  # outliers, at most

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise RequestError(f"threshold is {self.threshold}; it must be above 0 and at most 1")
        for name in ("size", "top"):
            if not 1 <= getattr(self, name) <= MOST:
                raise RequestError(f"{name} is {getattr(self, name)}; it must be between 1 and {MOST}")


@dataclass(frozen=True)
class Section:
    """Images of a view, each with a caption; with `first`, the first one is that to keep or to compare with."""

    title: str
    rows: list[int]
    captions: list[str]
    first: str = ""


@dataclass(frozen=True)
class View:
    """A view of the page: its name, what it says, and its sections."""

    name: str
    title: str
    hint: str
    sections: list[Section]
