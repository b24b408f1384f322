"""What every target makes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Made:
    """The bytes of a file, the code that loads it as `model` (ONNX: as `session`), and what that takes."""

    content: bytes
    code: list[str]
    normalizes: bool = False  # the file subtracts the mean and divides by the standard deviation itself
    checked: str = ""  # how the file was compared with the encoder it was made from
