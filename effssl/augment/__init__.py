"""Batched random views: parameters are drawn on the CPU, images are changed where they live."""

from effssl.augment.pipeline import Draws, cut, draw, flip, recolor

__all__ = ["Draws", "cut", "draw", "flip", "recolor"]
