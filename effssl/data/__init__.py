"""Where images come from: `open_data("cifar10")`, a folder, table, archive, array file or pack."""

from __future__ import annotations

from effssl.data.arrays import ArrayImages
from effssl.data.dataset import Data
from effssl.data.folder import FolderImages
from effssl.data.images import Images
from effssl.data.pack import PackedImages
from effssl.data.sources import NAMED, open_data

__all__ = ["NAMED", "ArrayImages", "Data", "FolderImages", "Images", "PackedImages", "open_data"]
