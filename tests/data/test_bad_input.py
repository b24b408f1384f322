"""Files and folders that go wrong."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

import effssl
from effssl.data import loader
from effssl.data.image_files import decode

ROOT = Path(__file__).parent.parent.parent
PHOTO = Image.fromarray(load_sample_image("flower.jpg"))
QUICK = {"epochs": 1, "batch_size": 4, "quiet": True, "encoder": "small", "image_size": 32}


@pytest.fixture
def album(tmp_path: Path) -> Path:
    folder = tmp_path / "album"
    folder.mkdir()
    for i in range(9):
        PHOTO.crop((10 * i, 10 * i, 150 + 10 * i, 120 + 10 * i)).save(folder / f"{i}.jpg")
    return folder


def bomb(side: int) -> bytes:
    """A PNG of some bytes that claims to be side×side pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_bombs_empty_files_and_text_are_listed_and_left_out(album: Path, tmp_path: Path) -> None:
    (album / "bomb.png").write_bytes(bomb(100_000))
    (album / "empty.jpg").touch()
    (album / "text.jpg").write_text("not an image")
    run = effssl.pretrain(str(album), "byol", out=tmp_path / "r", **QUICK)
    listed = (run.folder / "unreadable.txt").read_text().splitlines()
    assert sorted(Path(line).name for line in listed) == ["bomb.png", "empty.jpg", "text.jpg"]


def test_no_program_is_started_to_decode_an_image(album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PIL decodes PostScript, whatever the file is called, by Ghostscript."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (programs / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    (album / "x.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 90 90\n%%EndComments\nshowpage\n")
    data = effssl.data.open_data(str(album))
    assert [Path(name).name for name in data.unreadable] == ["x.jpg"]
    with pytest.raises(OSError, match="cannot identify"):
        decode(album / "x.jpg")
    assert not (tmp_path / "ran").exists()


def test_names_with_spaces_unicode_and_line_breaks(album: Path, tmp_path: Path) -> None:
    for i, name in enumerate(("a b.jpg", "fünf 猫.jpg", "two\nlines.jpg", b"bytes\xff.jpg")):
        (album / f"{i}.jpg").rename(album / os.fsdecode(name))
    (album / "bad\nname.jpg").touch()
    run = effssl.pretrain(str(album), "byol", out=tmp_path / "r", **QUICK)
    assert run.finished
    assert "bad\\nname.jpg" in (run.folder / "unreadable.txt").read_text()


def test_files_may_vanish_while_training(album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = loader.ViewLoader.epoch

    def robbed(self, epoch: int, first: int = 0):
        (album / f"{epoch}.jpg").unlink()
        yield from real(self, epoch, first)

    monkeypatch.setattr(loader.ViewLoader, "epoch", robbed)
    run = effssl.pretrain(str(album), "byol", out=tmp_path / "r", **QUICK | {"epochs": 3})
    assert run.finished


def test_an_animated_image_is_its_first_frame(album: Path) -> None:
    frames = [PHOTO.resize((64, 48)).rotate(90 * k) for k in range(3)]
    frames[0].save(album / "moving.webp", save_all=True, append_images=frames[1:], lossless=True)
    assert decode(album / "moving.webp").tobytes() == frames[0].tobytes()


def test_one_image_is_not_enough(tmp_path: Path) -> None:
    PHOTO.save(tmp_path / "a.jpg")
    with pytest.raises(effssl.RequestError, match="has one image; training needs at least two"):
        effssl.pretrain(str(tmp_path), "byol", out=tmp_path / "r", **QUICK)


def test_a_batch_of_nan_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    real = loader.ViewLoader.epoch

    def poisoned(self, epoch: int, first: int = 0):
        for views in real(self, epoch, first):
            yield dataclasses.replace(views, pixels={name: x * float("nan") for name, x in views.pixels.items()})

    monkeypatch.setattr(loader.ViewLoader, "epoch", poisoned)
    with pytest.raises(effssl.RunFailed, match="loss is not finite") as error:
        effssl.pretrain("digits", "byol", out=tmp_path / "r", epochs=1, quiet=True)
    assert "intact" not in str(error.value)  # nothing was saved yet


def test_what_is_not_finite_is_never_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bad batch between two looks at the loss: the run ends before its next checkpoint, and can go on."""
    import dataclasses

    real = loader.ViewLoader.epoch

    def poisoned(self, epoch: int, first: int = 0):
        for views in real(self, epoch, first):
            bad = float("nan") if views.step == 4 else 1.0
            yield dataclasses.replace(views, pixels={name: x * bad for name, x in views.pixels.items()})

    settings = {"epochs": 1, "subset": 512, "batch_size": 64, "checkpoint_every": 1, "quiet": True}
    with monkeypatch.context() as patch:
        patch.setattr(loader.ViewLoader, "epoch", poisoned)
        with pytest.raises(effssl.RunFailed, match=r"not finite.*saved before is intact"):
            effssl.pretrain("digits", "byol", out=tmp_path / "r", **settings)
    run = effssl.pretrain("digits", "byol", out=tmp_path / "r", resume="auto", **settings)
    whole = effssl.pretrain("digits", "byol", out=tmp_path / "whole", **settings)
    assert run.encoder_path.read_bytes() == whole.encoder_path.read_bytes()


def test_a_run_goes_on_with_its_own_images_when_the_folder_changes(
    album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    real = loader.ViewLoader.epoch

    def interrupted(self, epoch: int, first: int = 0):
        if epoch == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        yield from real(self, epoch, first)

    with monkeypatch.context() as patch:
        patch.setattr(loader.ViewLoader, "epoch", interrupted)
        with pytest.raises(effssl.Stopped):
            effssl.pretrain(str(album), "byol", out=tmp_path / "r", **QUICK | {"epochs": 2})
    (album / "1.jpg").unlink()
    for i in range(3):
        PHOTO.save(album / f"new{i}.jpg")
    monkeypatch.chdir(album)  # a run may also go on from elsewhere
    run = effssl.pretrain(".", "byol", out=tmp_path / "r", resume="auto", **QUICK | {"epochs": 2})
    assert run.finished
    said = capsys.readouterr().err
    assert "1 images are gone and left out, 3 new images are not used" in said
    assert "cannot be decoded" in said


def test_images_that_were_replaced_are_noticed_on_resume(
    album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same names, sizes and lengths: only the content tells."""
    for path in sorted(album.iterdir()):
        Image.open(path).save(path.with_suffix(".bmp"))
        path.unlink()
    from effssl.data.listing import as_listed, write_list

    images = effssl.open_data(str(album)).train
    write_list(images, tmp_path / "images.npz")
    for path in sorted(album.iterdir()):  # a copy of the folder is the same folder
        path.write_bytes(path.read_bytes())
    assert len(as_listed(images, tmp_path / "images.npz")) == len(images)
    other = album / "3.bmp"
    Image.open(other).rotate(180).save(other)
    with pytest.raises(effssl.RequestError, match=r"1 of 9 images have other content .*3\.bmp"):
        as_listed(effssl.open_data(str(album)).train, tmp_path / "images.npz")


def test_pipes_and_links_in_a_circle(album: Path) -> None:
    count = len(effssl.open_data(str(album)).train)
    os.mkfifo(album / "pipe.jpg")
    (album / "again").symlink_to(album)
    data = effssl.open_data(str(album))
    assert len(data.train) == count
    assert data.unreadable == [str(album / "pipe.jpg")]


def test_sixteen_bits_and_turned(tmp_path: Path) -> None:
    import numpy as np

    from effssl.data.image_files import decode

    deep = (np.arange(40 * 60).reshape(40, 60) * 27).astype(np.uint16)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(deep).save(tmp_path / "deep.png", exif=exif)
    image = decode(tmp_path / "deep.png")
    assert image.size == (40, 60)
    assert np.array_equal(np.asarray(image)[..., 0], np.rot90(deep >> 8, -1))


def test_an_array_that_claims_to_be_larger_than_memory(tmp_path: Path) -> None:
    import numpy as np

    header = np.lib.format.header_data_from_array_1_0(np.zeros((1, 2, 2, 3), np.uint8))
    with (tmp_path / "huge.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header | {"shape": (1 << 40, 16, 16, 3)})
    with pytest.raises(effssl.RequestError, match="not a readable NumPy file"):
        effssl.open_data(str(tmp_path / "huge.npy"))


@pytest.mark.parametrize("text", ["lr: 1\nlr: 2\n", "rotation: {size: 1, size: 2}\n", "a: " + "[" * 3000 + "]" * 3000])
def test_yaml_that_means_nothing_good(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(effssl.RequestError, match="not readable as YAML"):
        effssl.pretrain("digits", config=tmp_path / "c.yaml", out=tmp_path / "r")


def test_a_config_of_a_newer_version_says_so(tmp_path: Path) -> None:
    path = tmp_path / "new.yaml"
    path.write_text("data: digits\nhologram: 3\nversions: {effssl: 9.1.0}\n")
    with pytest.raises(effssl.RequestError, match=r"written by effssl 9\.1\.0, which is newer.*unknown key 'hologram'"):
        effssl.pretrain(config=path, out=tmp_path / "r")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else; root itself reads everything")
def test_files_and_folders_that_may_not_be_read(album: Path, tmp_path: Path) -> None:
    (album / "0.jpg").chmod(0)
    (album / "closed").mkdir()
    PHOTO.save(album / "closed" / "a.jpg")
    (album / "closed").chmod(0)
    code = (
        "import os\n"
        "from effssl.data import folder, open_data\n"
        "os.setgid(65534); os.setuid(65534)\n"
        f"data = open_data({str(album)!r})\n"
        "print(len(data.train), sorted(os.path.basename(p) for p in data.unreadable))\n"
    )
    for folder in (tmp_path, *tmp_path.parents):
        if folder.is_relative_to(tempfile.gettempdir()) and folder != Path(tempfile.gettempdir()):
            folder.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    (album / "closed").chmod(0o755)
    assert done.stdout.strip() == "8 ['0.jpg', 'closed']", done.stderr[-800:]
