"""Packs: the same images without decoding; nothing is lost when packing is cut off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

import effssl
from effssl.augment.crop import center_boxes
from effssl.config import Augment
from effssl.data import FolderImages, PackedImages, open_data
from effssl.data.loader import ViewLoader, ahead, clean_batches
from effssl.data.pack import check_pack
from effssl.data.views import Needs

CPU = torch.device("cpu")
ROOT = Path(__file__).parent.parent.parent
PHOTO = Image.fromarray(load_sample_image("china.jpg"))
FILES = ("index.npz", "pixels.bin", "pack.json")


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Photographs of many sizes in train/ and test/, with two labels; some are turned by EXIF, gray or broken."""
    folder = tmp_path / "al bum"
    for part, count in (("train", 20), ("test", 6)):
        for i in range(count):
            path = folder / part / ("left", "right")[i % 2] / f"{i:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            PHOTO.crop((12 * i, 5 * i, 200 + 20 * i, 130 + 15 * i)).save(path)
    turned = Image.Exif()
    turned[0x0112] = 6
    PHOTO.crop((0, 0, 200, 100)).save(folder / "train/left/turned\n.jpg", exif=turned)
    PHOTO.convert("L").save(folder / "train/left/gray.png")
    whole = (folder / "train/left/00.png").read_bytes()
    (folder / "train/left/cut.png").write_bytes(whole[: len(whole) // 2])
    return folder


def loader(images, **flags) -> ViewLoader:
    return ViewLoader(images, Augment(**flags), Needs(large=2), 8, 48, 0, CPU, workers=0)


def test_a_pack_holds_what_the_folder_holds(album: Path) -> None:
    made = effssl.pack(album, short_side=0, workers=0)
    assert made == album.with_name("al bum.pack")
    assert sorted(path.name for path in made.iterdir()) == sorted(FILES)
    there, packed = open_data(str(album)), open_data(str(made))
    for files, images in ((there.train, packed.train), (there.test, packed.test)):
        assert isinstance(images, PackedImages)
        keep = [i for i, path in enumerate(files.paths) if path.name != "cut.png"]
        assert [album / path for path in images.paths] == [files.paths[i] for i in keep]
        assert torch.equal(images.sizes, files.sizes[keep])
        assert torch.equal(images.labels, files.labels[keep])
        assert images.classes == files.classes
    row = [path.name for path in packed.train.paths].index("02.png")
    expected = np.asarray(PHOTO.crop((24, 10, 240, 160)))
    assert np.array_equal(packed.train.read(torch.tensor([row]))[0].permute(1, 2, 0).numpy(), expected)
    together = packed.train.read(torch.arange(len(packed.train)))[row, :, :150, :216]  # padded to the largest
    assert np.array_equal(together.permute(1, 2, 0).numpy(), expected)


def test_views_of_a_pack_are_those_of_the_files(album: Path) -> None:
    (album / "train/left/cut.png").unlink()
    there, packed = open_data(str(album)), open_data(str(effssl.pack(album, short_side=0, workers=0)))
    flags = {"jitter": 0.0, "gray": 0.0, "mean": (0.0,) * 3, "std": (1.0,) * 3}
    pairs = zip(loader(there.train, **flags).epoch(0), loader(packed.train, **flags).epoch(0), strict=True)
    for files, images in pairs:
        assert torch.equal(files.index, images.index)
        for a, b in zip(files.large, images.large, strict=True):
            assert (a - b).abs().max() < 1.5 / 255  # PIL rounds between the two directions
    box = partial(center_boxes, share=0.875)
    of_files = torch.cat([pixels for pixels, _ in clean_batches(there.train, 40, box, 7, workers=0)])
    of_pack = torch.cat([pixels for pixels, _ in clean_batches(packed.train, 40, box, 7)])
    assert (of_files.int() - of_pack.int()).abs().max() <= 2


def test_larger_images_are_shrunk_to_the_short_side(album: Path, tmp_path: Path) -> None:
    packed = open_data(str(effssl.pack(album, tmp_path / "small", short_side=140, workers=0))).train
    before = open_data(str(album)).train.sizes
    assert int(packed.sizes.min(1).values.max()) == 140
    assert int(packed.sizes.min()) == int(before.min())  # what is smaller stays as it is
    row = [path.name for path in packed.paths].index("18.png")
    whole = PHOTO.crop((216, 90, 560, 400))
    expected = np.asarray(whole.resize((155, 140), Image.Resampling.BICUBIC, reducing_gap=3.0))
    assert np.array_equal(packed.read(torch.tensor([row]))[0].permute(1, 2, 0).numpy(), expected)


def test_a_killed_packing_goes_on_to_the_same_bytes(album: Path, tmp_path: Path) -> None:
    for i in range(300):
        PHOTO.crop((i % 40, 0, 600 + i % 40, 420)).save(album / "train/right" / f"more{i}.png", compress_level=0)
    whole = effssl.pack(album, tmp_path / "whole", workers=0)
    command = [sys.executable, "-m", "effssl", "pack", str(album), "--out", str(tmp_path / "cut"), "--workers", "1"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    for _ in range(2):
        running = subprocess.Popen(command, env=env, start_new_session=True, stdout=subprocess.PIPE, text=True)
        part = tmp_path / "cut" / "index.part"
        size = part.stat().st_size if part.exists() else 0
        while running.poll() is None and not (part.exists() and part.stat().st_size > size):
            time.sleep(0.001)
        os.killpg(running.pid, signal.SIGSTOP)
        assert running.poll() is None
        with pytest.raises(effssl.RequestError, match="not finished"):
            open_data(str(tmp_path / "cut"))
        with pytest.raises(effssl.RequestError, match="being packed by process"):
            effssl.pack(album, tmp_path / "cut")
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
    with pytest.raises(effssl.RequestError, match="another --short-side"):
        effssl.pack(album, tmp_path / "cut", short_side=99)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert "going on after" in done.stderr
    assert "326" not in done.stderr.split("going on after")[1].split()[0]
    assert "effssl pretrain --data" in done.stdout
    for name in FILES:
        assert (whole / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()


def test_a_packing_stopped_at_its_last_line_goes_on(album: Path, tmp_path: Path, monkeypatch) -> None:
    from effssl.data import pack as module

    real, calls = module.write_atomically, []

    def stopped(path: Path, content: str | bytes) -> None:
        calls.append(path.name)
        if path.name == "pack.json":
            raise KeyboardInterrupt
        real(path, content)

    monkeypatch.setattr(module, "write_atomically", stopped)
    with pytest.raises(KeyboardInterrupt):
        effssl.pack(album, tmp_path / "p", workers=0)
    monkeypatch.setattr(module, "write_atomically", real)
    again, whole = effssl.pack(album, tmp_path / "p", workers=0), effssl.pack(album, tmp_path / "q", workers=0)
    for name in FILES:
        assert (again / name).read_bytes() == (whole / name).read_bytes()


def test_damage_is_found(album: Path, tmp_path: Path) -> None:
    made = effssl.pack(album, tmp_path / "p", workers=0)
    assert effssl.pack(made) == made  # given a pack, it is checked
    content = bytearray((made / "pixels.bin").read_bytes())
    content[len(content) // 2] ^= 1
    (made / "pixels.bin").write_bytes(content)
    assert len(list(check_pack(made))) == 1
    with pytest.raises(effssl.RunFailed, match="is damaged"):
        effssl.pack(made)
    (made / "pixels.bin").write_bytes(content[:-1])
    with pytest.raises(effssl.RequestError, match="damaged"):
        open_data(str(made))
    (made / "pixels.bin").write_bytes(content)
    index = bytearray((made / "index.npz").read_bytes())
    index[100] ^= 1
    (made / "index.npz").write_bytes(index)
    with pytest.raises(effssl.RequestError, match="damaged"):
        open_data(str(made))
    about = json.loads((made / "pack.json").read_text())
    (made / "pack.json").write_text(json.dumps(about | {"format": "effssl pack 2"}))
    with pytest.raises(effssl.RequestError, match="this effssl reads"):
        open_data(str(made))


def test_refusals(album: Path, tmp_path: Path) -> None:
    made = effssl.pack(album, tmp_path / "p", workers=0)
    with pytest.raises(effssl.RequestError, match="finished"):
        effssl.pack(album, made)
    with pytest.raises(effssl.RequestError, match="not a folder"):
        effssl.pack(tmp_path / "nowhere")
    with pytest.raises(effssl.RequestError, match="lies inside"):
        effssl.pack(album, album / "inside")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "lock").touch()  # all that a packing leaves that is killed at once
    effssl.pack(album, tmp_path / "begun", workers=0)
    (album / "plan.json").write_text("{}")  # a folder of images may hold any other file
    assert isinstance(open_data(str(album)).train, FolderImages)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear")
    with pytest.raises(effssl.RequestError, match="not a pack"):
        effssl.pack(album, tmp_path / "mine")
    for i in range(4):
        (tmp_path / "tiny").mkdir(exist_ok=True)
        PHOTO.crop((i, 0, i + 32, 32)).save(tmp_path / "tiny" / f"{i}.png")
    with pytest.raises(effssl.RequestError, match="nothing to pack"):
        effssl.pack(tmp_path / "tiny")
    with pytest.raises(effssl.RequestError, match="sub-folders"):
        open_data(str(made), classes="imagenet100")


def test_a_pack_trains_and_is_measured(album: Path, tmp_path: Path) -> None:
    made = effssl.pack(album, workers=0)
    settings = {"epochs": 2, "batch_size": 8, "image_size": 32, "quiet": True, "encoder": "small"}
    run = effssl.pretrain(str(made), "byol+rotation", out=tmp_path / "r", **settings)
    score = run.knn(k=3)
    assert score.source["train_images"] == 22
    assert score.source["test_images"] == 6
    assert run.linear(setting="simsiam", epochs=1).source["data"] == "al bum"
    assert run.evaluate("semi", percent=10, epochs=1, batch=4).constants["labels"] == 2
    assert open_data(str(made), labels="none").train.labels is None
    other = made.with_name("other.pack")
    made.rename(other)  # a pack may be moved; the images in it are the same
    assert open_data(str(other)).train.fingerprint() == score.source["train_fingerprint"]


def test_items_are_made_ahead_and_in_order() -> None:
    made: list[int] = []
    items = ahead(made.append(i) or i for i in range(5))  # type: ignore[func-returns-value]
    assert next(items) == 0
    time.sleep(0.2)
    assert made == [0, 1]
    assert list(items) == [1, 2, 3, 4]
