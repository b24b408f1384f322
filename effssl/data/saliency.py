"""Crops with much saliency: chosen by saliency maps that are computed once and stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from effssl.data.images import Images
from effssl.runtime.errors import RequestError
from effssl.runtime.reading import describe, read_arrays


class SaliencyMaps:
    """One map per training image, kept as integral images so that the mean over any box is four look-ups."""

    def __init__(self, maps: Tensor) -> None:
        """maps: N×g×g, spread over the whole image whatever its shape."""
        maps = maps.double()
        sums = maps.cumsum(1).cumsum(2)
        self.integral = torch.nn.functional.pad(sums, (1, 0, 1, 0))  # N×(g+1)×(g+1)
        self.mean = maps.mean((1, 2))  # N
        self.grid = maps.shape[1]

    @classmethod
    def open(cls, path: str, images: Images) -> SaliencyMaps:
        """Read a file that `effssl saliency` wrote for these images."""
        try:
            stored = read_arrays(Path(path))
            if lacking := {"maps", "fingerprint"} - stored.keys():
                raise ValueError(f"it has no array named {' or '.join(sorted(lacking))}")
            maps, fingerprint = torch.from_numpy(stored["maps"].astype(np.float32)), str(stored["fingerprint"])
            if maps.ndim != 3 or not 0 < maps.shape[1] == maps.shape[2] or not bool(maps.isfinite().all()):
                raise ValueError(f"maps of shape {tuple(maps.shape)}, which are N squares of finite numbers")
        except FileNotFoundError:
            raise RequestError(f"no saliency maps at {path}; compute them with effssl saliency") from None
        except (OSError, ValueError, TypeError) as error:
            raise RequestError(f"{path} is not a file of saliency maps: {describe(error)}") from None
        if fingerprint != images.fingerprint() or len(maps) != len(images):
            raise RequestError(f"the saliency maps of {path} belong to other images")
        return cls(maps)

    def box_mean(self, rows: Tensor, sizes: Tensor, box: Tensor) -> Tensor:
        """Mean saliency inside each box (top, left, height, width in pixels), N; boxes may cut through map cells."""
        scale = self.grid / sizes.double()  # N×2: map cells per pixel
        top, left = box[:, 0] * scale[:, 0], box[:, 1] * scale[:, 1]
        bottom, right = top + box[:, 2] * scale[:, 0], left + box[:, 3] * scale[:, 1]
        area = (bottom - top) * (right - left)

        def corner(y: Tensor, x: Tensor) -> Tensor:
            # The integral of a map that is constant in each cell is bilinear between the cells' corners.
            y0, x0 = y.floor().clamp(0, self.grid - 1), x.floor().clamp(0, self.grid - 1)
            fy, fx, i, j = y - y0, x - x0, y0.long(), x0.long()
            table = self.integral
            low = table[rows, i, j] * (1 - fx) + table[rows, i, j + 1] * fx
            high = table[rows, i + 1, j] * (1 - fx) + table[rows, i + 1, j + 1] * fx
            return low * (1 - fy) + high * fy

        inside = corner(bottom, right) - corner(top, right) - corner(bottom, left) + corner(top, left)
        return inside / area

    def choose(self, rows: Tensor, sizes: Tensor, tries: list[Tensor], wanted: Tensor) -> Tensor:
        """Of each image's tries the first box that beats its mean saliency; the last one if none does, or unwanted."""
        chosen, open_rows = tries[-1].clone(), wanted.clone()
        for box in tries:
            accept = open_rows & (self.box_mean(rows, sizes, box) > self.mean[rows])
            chosen[accept] = box[accept]
            open_rows &= ~accept
        return chosen
