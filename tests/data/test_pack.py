"""Packs: the same images without decoding; nothing is lost when packing is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

import effssl
from effssl.augment.crop import center_boxes
from effssl.augment.options import Augment, ViewGroup
from effssl.data import FolderImages, PackedImages, open_data
from effssl.data.images import Reading, crop_batches, read_ahead
from effssl.data.loader import Batching, ViewLoader, ViewSpec
from effssl.data.pack import check_pack

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
    spec = ViewSpec(Augment(**flags), {"large": ViewGroup(count=2)}, 48)
    return ViewLoader(images, spec, Batching(8, 0, workers=0), CPU)


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
        difference = files.pixels["large"] - images.pixels["large"]
        assert difference.abs().max() < 1.5 / 255  # PIL rounds between the two directions
    centers = center_boxes(there.train.sizes, 0.875)
    of_files, of_pack = (
        torch.cat([x for x, _ in crop_batches(part, centers, 40, 7, Reading(workers=0))])
        for part in (there.train, packed.train)
    )
    assert (of_files - of_pack).abs().max() < 2 / 255


def test_whole_images_of_files_pack_and_memory(album: Path) -> None:
    there, packed = open_data(str(album)).train, open_data(str(effssl.pack(album, short_side=0, workers=0))).train
    row = [path.name for path in packed.paths].index("02.png")
    expected = np.asarray(PHOTO.crop((24, 10, 240, 160)))
    in_memory = effssl.data.ArrayImages(torch.from_numpy(expected.copy()).permute(2, 0, 1)[None])
    of_file = there.image([path.name for path in there.paths].index("02.png"))
    for image in (of_file, packed.image(row), in_memory.image(0)):
        assert np.array_equal(np.asarray(image), expected)
    Path(there.paths[0]).unlink()
    with pytest.raises(OSError, match="No such file"):
        there.image(0)


def test_larger_images_are_shrunk_to_the_short_side(album: Path, tmp_path: Path) -> None:
    packed = open_data(str(effssl.pack(album, tmp_path / "small", short_side=140, workers=0))).train
    before = open_data(str(album)).train.sizes
    assert int(packed.sizes.min(1).values.max()) == 140
    assert int(packed.sizes.min()) == int(before.min())  # what is smaller stays as it is
    row = [path.name for path in packed.paths].index("18.png")
    whole = PHOTO.crop((216, 90, 560, 400))
    expected = np.asarray(whole.resize((155, 140), Image.Resampling.BICUBIC, reducing_gap=3.0))
    assert np.array_equal(packed.read(torch.tensor([row]))[0].permute(1, 2, 0).numpy(), expected)


def test_a_killed_packing_resumes_to_the_same_bytes(album: Path, tmp_path: Path) -> None:
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
        with pytest.raises(effssl.RequestError, match="cut is being written by process"):
            effssl.pack(album, tmp_path / "cut")
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
    with pytest.raises(effssl.RequestError, match="another short_side="):
        effssl.pack(album, tmp_path / "cut", short_side=99)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert "resuming after" in done.stderr
    assert "326" not in done.stderr.split("resuming after")[1].split()[0]
    assert "effssl pretrain --data" in done.stdout
    for name in FILES:
        assert (whole / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()


def test_a_packing_stopped_at_its_last_step_resumes(album: Path, tmp_path: Path, monkeypatch) -> None:
    from effssl.data import packing as module

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
    (made / "pack.json").write_text(json.dumps(about | {"format": "effssl pack 9"}))
    with pytest.raises(effssl.RequestError, match="this effssl reads"):
        open_data(str(made))
    (made / "pack.json").write_bytes(b"\0" * 100)
    with pytest.raises(effssl.RequestError, match=r"the pack .* cannot be read .*; pack it again"):
        open_data(str(made))


def test_refusals(album: Path, tmp_path: Path) -> None:
    made = effssl.pack(album, tmp_path / "p", workers=0)
    with pytest.raises(effssl.RequestError, match="finished"):
        effssl.pack(album, made)
    with pytest.raises(effssl.RequestError, match="not a folder"):
        effssl.pack(tmp_path / "nowhere")
    with pytest.raises(effssl.RequestError, match="is inside the folder"):
        effssl.pack(album, album / "inside")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "lock").touch()  # all that a packing leaves that is killed at once
    effssl.pack(album, tmp_path / "begun", workers=0)
    (album / "plan.json").write_text("{}")  # a folder of images may hold any other file
    assert isinstance(open_data(str(album)).train, FolderImages)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear")
    with pytest.raises(effssl.RequestError, match="holds other files"):
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
    assert run.linear(setting="cifar-crops", epochs=1).source["data"] == "al bum"
    assert run.evaluate("semi", percent=10, epochs=1, batch=4).constants["labels"] == 2
    assert open_data(str(made), labels="none").train.labels is None
    other = made.with_name("other.pack")
    made.rename(other)  # a pack may be moved; the images in it are the same
    assert open_data(str(other)).train.fingerprint() == score.source["train_fingerprint"]


def test_items_are_read_one_ahead_and_in_order() -> None:
    done: list[int] = []

    def read(item: int) -> int:
        done.append(item)
        return 10 * item

    results = read_ahead(read, range(5))
    assert next(results) == (0, 0)
    time.sleep(0.2)
    assert done == [0, 1]
    assert list(results) == [(1, 10), (2, 20), (3, 30), (4, 40)]
