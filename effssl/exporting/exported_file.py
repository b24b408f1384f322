"""What the function of every target returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExportedFile:
    """The content of a file, and the Python code that loads it as `model` (ONNX: as `session`)."""

    content: bytes
    code: list[str]
    normalizes: bool = False  # mean and standard deviation are applied inside the file
    checked: str = ""  # how its features compare with the encoder's
