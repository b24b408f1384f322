"""Flags of every command that takes an encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class EncoderSource:
    """Where an encoder runs, and what a weight file or a model name does not say of one."""

    device: str = "auto"
    """where the encoder runs: auto, cpu, cuda, mps"""
    encoder: str = ""
    """architecture of a weight file that does not state it: resnet50, timm:<name>, small"""
    weights: Literal["default", "random"] = "default"
    """of an encoder that is given by name: the library's pretrained ones, or random ones"""
    image_size: int = 0
    """side of the images that an encoder from elsewhere takes; 0 is what its pretrained weights say, else 224, or 32
    for small"""
