"""Batched random views: parameters are drawn on the CPU, images are changed where they live."""

from effssl.augment.pipeline import Draws, apply, draw

__all__ = ["Draws", "apply", "draw"]
