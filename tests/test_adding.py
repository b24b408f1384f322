"""What CONTRIBUTING says of adding things, by adding a source of images and a verb."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import effssl
from effssl import cli
from effssl.augment.pipeline import crop_and_flip
from effssl.augment.pixel_format import PICTURES
from effssl.data import Data, sources
from effssl.data.images import CropRequest, Crops, Reading

SIDE = 24


@dataclass(frozen=True)
class Stripes:
    """Images of stripes, which exist nowhere: their width is their class. All that `Images` asks for, and no more."""

    widths: Tensor  # N
    in_memory = False
    from_files = False
    pixel_format = PICTURES
    classes = ("narrow", "wide")
    paths = None

    @property
    def sizes(self) -> Tensor:
        return torch.full((len(self), 2), SIDE)

    @property
    def labels(self) -> Tensor:
        return (self.widths > 4).long()

    def __len__(self) -> int:
        return len(self.widths)

    def select(self, rows: Tensor) -> Stripes:
        return replace(self, widths=self.widths[rows])

    def fingerprint(self) -> str:
        return hashlib.blake2b(self.widths.numpy().data, digest_size=8).hexdigest()

    def array(self, row: int) -> np.ndarray:
        width = int(self.widths[row])
        line = 255 * (np.arange(SIDE) // width % 2)
        return np.broadcast_to(line[None, :, None], (SIDE, SIDE, 3)).astype(np.uint8)

    def image(self, row: int) -> Image.Image:
        return Image.fromarray(self.array(row))

    def crops(self, requests: Iterable[CropRequest], reading: Reading) -> Iterator[Crops]:
        for request in requests:
            pixels = torch.from_numpy(np.stack([self.array(row) for row in request.rows.tolist()])).permute(0, 3, 1, 2)
            groups = {
                name: crop_and_flip(pixels.float(), group.boxes, group.flips, group.side, reading.filter, 1 / 255)
                for name, group in request.groups.items()
            }
            yield Crops(torch.ones(len(pixels), dtype=torch.bool), groups)


def open_stripes(spec: str, labels: str = "auto") -> Data:
    count = int(spec.partition(":")[2])
    widths = 2 + torch.arange(count) % 6
    return Data("stripes", Stripes(widths), Stripes(widths[: count // 2]))


def test_a_source_of_images_is_one_file_and_a_line(monkeypatch: pytest.MonkeyPatch, in_tmp: Path) -> None:
    stripes = sources.Source(lambda spec: spec.startswith("stripes:"), open_stripes, sources.as_it_is)
    monkeypatch.setattr(sources, "SOURCES", (stripes, *sources.SOURCES))
    quick = {"epochs": 3, "batch_size": 16, "image_size": 32, "workers": 0, "quiet": True}
    run = effssl.pretrain("stripes:96", "simsiam", out="run", **quick)
    assert run.config.data == "stripes:96"
    assert run.knn(k=5).accuracy > 80  # half of the images are narrow
    assert effssl.embed("run", "stripes:96", "features.npz", workers=0).features.shape[0] == 96 + 48
    with pytest.raises(effssl.RequestError, match="stripes:96 → stripes:90"):
        effssl.pretrain("stripes:90", "simsiam", out="run", resume="auto", **quick)


def test_a_verb_is_one_file_and_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    def count(data: str, times: int = 1) -> None:
        """Print how many training images there are."""
        print(times * len(effssl.open_data(data).train))

    module = ModuleType("effssl.commands.count")
    module.count = count  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "effssl.commands.count", module)
    monkeypatch.setitem(cli.VERBS, "count", ("count:count", "count images"))
    cli.main(["count", "--data", "digits", "--times", "2"])
    assert capsys.readouterr().out == "2874\n"
    with pytest.raises(SystemExit) as stopped:
        cli.main(["count", "--data", "digits", "--tims", "2"])
    assert stopped.value.code == 2
    assert "--times" in capsys.readouterr().err  # the flag that was meant
    cli.main(["--help"])
    assert "count images" in capsys.readouterr().out
