"""Images inside zip and tar files: what a folder of the same files is, without unpacking it."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

import effssl
from effssl.cli import main
from effssl.data import ArrayImages, open_data
from effssl.data.archive import ArchiveImages
from effssl.data.images import Reading, crop_batches, whole_boxes
from effssl.runtime.errors import RequestError


@pytest.fixture
def album(tmp_path: Path, photos: Tensor) -> Path:
    """Photographs in train/ and test/ with two classes, of three formats."""
    for i in range(12):
        folder = tmp_path / "album" / ("train" if i < 8 else "test") / ("sky", "roof")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        photo = Image.fromarray(photos[5 * i].permute(1, 2, 0).numpy())
        photo.resize((96 + i, 80)).save(folder / f"{i:02}.{('jpg', 'png', 'webp')[i % 3]}")
    (tmp_path / "album/train/sky/.hidden.jpg").write_bytes(b"x")
    (tmp_path / "album/notes.txt").write_text("not an image")
    return tmp_path / "album"


def write_zip(folder: Path, out: Path, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(out, "w", method) as file:
        for path in sorted(folder.rglob("*")):
            file.write(path, path.relative_to(folder.parent))
    return out


def write_tar(folder: Path, out: Path) -> Path:
    with tarfile.open(out, "w") as file:
        file.add(folder, "./album")
    return out


def deflated(folder: Path, out: Path) -> Path:
    return write_zip(folder, out, zipfile.ZIP_DEFLATED)


WRITERS = [(write_zip, "a.zip"), (deflated, "b.zip"), (write_tar, "c.tar")]


@pytest.mark.parametrize(("writer", "name"), WRITERS)
def test_an_archive_holds_what_the_folder_holds(album: Path, tmp_path: Path, writer: Callable, name: str) -> None:
    there = open_data(str(album))
    data = open_data(str(writer(album, tmp_path / name)))
    before = sorted(tmp_path.rglob("*"))
    for same, images in ((there.train, data.train), (there.test, data.test)):
        assert isinstance(images, ArchiveImages)
        assert [path.name for path in images.paths] == [path.name for path in same.paths]
        assert torch.equal(images.sizes, same.sizes)
        assert torch.equal(images.labels, same.labels)
        assert images.classes == same.classes == ["roof", "sky"]
        assert [images.image(i).tobytes() for i in range(len(images))] == [
            same.image(i).tobytes() for i in range(len(images))
        ]
        read, expected = (
            [x for x, _ in crop_batches(some, whole_boxes(some.sizes), 32, 4, Reading(workers=workers))]
            for some, workers in ((images, 1), (same, 0))
        )
        assert torch.equal(torch.cat(read), torch.cat(expected))
    assert data.unreadable == []
    assert sorted(tmp_path.rglob("*")) == before


def test_fingerprints_follow_content_and_not_the_place(album: Path, tmp_path: Path) -> None:
    first = open_data(str(write_zip(album, tmp_path / "a.zip"))).train.fingerprint()
    assert open_data(str(deflated(album, tmp_path / "other.zip"))).train.fingerprint() == first
    tar = open_data(str(write_tar(album, tmp_path / "c.tar"))).train.fingerprint()
    file = album / "train/sky/00.jpg"
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(content)
    assert open_data(str(write_zip(album, tmp_path / "a.zip"))).train.fingerprint() != first
    assert open_data(str(write_tar(album, tmp_path / "c.tar"))).train.fingerprint() != tar


def test_labels_as_in_a_folder(album: Path, tmp_path: Path) -> None:
    path = str(write_zip(album / "train", tmp_path / "a.zip"))  # train/sky/…, and nothing beside it
    assert open_data(path).train.labels is None
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as file:
        for i, name in enumerate(("cat/0.jpg", "dog/deep/1.jpg", "dog/2.jpg")):
            file.write(sorted(album.rglob("0*.jpg"))[i + 1], f"photos/{name}")
    data = open_data(str(tmp_path / "b.zip"), "folders")
    assert data.train.classes == ["cat", "dog"]
    assert data.train.labels.tolist() == [0, 1, 1]
    assert open_data(str(tmp_path / "b.zip")).train.labels is None
    with zipfile.ZipFile(tmp_path / "b.zip", "a") as file:
        file.write(sorted(album.rglob("0*.jpg"))[1], "loose.jpg")
    with pytest.raises(RequestError, match=r"loose\.jpg lies outside"):
        open_data(str(tmp_path / "b.zip"), "folders")


def test_nothing_outside_of_the_archive_is_read(album: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jpg"
    secret.write_bytes((album / "train/sky/00.jpg").read_bytes())
    tar = write_tar(album, tmp_path / "a.tar")
    with tarfile.open(tar, "a") as file:
        for name, kind in (("link.jpg", tarfile.SYMTYPE), ("hard.jpg", tarfile.LNKTYPE), ("../up.jpg", None)):
            member = tarfile.TarInfo(f"album/train/sky/{name}" if kind else name)
            member.type, member.linkname = kind or tarfile.REGTYPE, str(secret)
            member.size = 0 if kind else secret.stat().st_size
            file.addfile(member, io.BytesIO(secret.read_bytes()))
    data = open_data(str(tar))
    assert len(data.train) == 8
    assert sorted(line.rsplit("/", 1)[1] for line in data.unreadable) == ["hard.jpg", "link.jpg", "up.jpg"]


def test_damaged_members_are_left_out(album: Path, tmp_path: Path) -> None:
    path = write_zip(album, tmp_path / "a.zip")
    images = open_data(str(path)).train
    offset = int(images.members.table["offset"][0])
    content = bytearray(path.read_bytes())
    content[offset : offset + 40] = bytes(40)
    path.write_bytes(content)
    data = open_data(str(path))
    assert data.unreadable == [str(images.paths[0])]
    assert len(data.train) == 7
    with pytest.raises(OSError, match="checksum"):
        images.image(0)
    path.write_bytes(content[:offset])
    with pytest.raises(OSError, match="ends before"):
        images.image(3)


def test_an_entry_cannot_expand_beyond_what_it_says(album: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.write(album / "train/sky/00.jpg", "good.jpg")
        file.writestr("bomb.png", bytes(50_000_000))
    content = (tmp_path / "a.zip").read_bytes()
    (tmp_path / "a.zip").write_bytes(content.replace((50_000_000).to_bytes(4, "little"), (1000).to_bytes(4, "little")))
    data = open_data(str(tmp_path / "a.zip"))
    assert [Path(name).name for name in data.unreadable] == ["bomb.png"]


def test_small_images_are_kept_in_memory(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        for i in range(3):
            content = io.BytesIO()
            Image.new("RGB", (20, 20), (i, 0, 0)).save(content, "PNG")
            file.writestr(f"{i}.png", content.getvalue())
    images = open_data(str(tmp_path / "a.zip")).train
    assert isinstance(images, ArrayImages)
    assert images.pixels[:, 0, 0, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.zip", b"PK no archive", "not a zip or tar file"),
        ("a.tar", os.urandom(2000), "not a zip or tar file"),
        ("a.tar.gz", b"", "unpack it into a folder"),
        ("a.zip", b"PK\x05\x06" + bytes(18), "no images in"),
    ],
)
def test_archives_that_cannot_be_used(
    tmp_path: Path, name: str, content: bytes, says: str, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SystemExit) as end:
        main(["pretrain", "--data", str(tmp_path / name), "--out", str(tmp_path / "run")])
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert says in error
    assert error.count("\n") == 1


def test_a_missing_archive(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such file"):
        open_data(str(tmp_path / "a.zip"))


def test_an_archive_trains_resumes_evaluates_embeds_and_packs(album: Path, tmp_path: Path) -> None:
    path = write_zip(album, tmp_path / "photos.zip")
    quick = {"batch_size": 4, "image_size": 32, "workers": 0, "quiet": True, "encoder": "tiny"}
    effssl.pretrain(str(path), "simsiam", epochs=1, out=tmp_path / "run", **quick)
    longer = effssl.pretrain(str(path), "simsiam", epochs=2, out=tmp_path / "run", resume="auto", **quick)
    assert 0 <= longer.knn(k=2).value <= 100
    query = f"{path}/album/train/roof/01.png"
    near = effssl.neighbors(tmp_path / "run", path, query, k=1, workers=0)
    assert near[0].query == query
    assert near[0].found[0].label in ("roof", "sky")
    packed, there = open_data(str(effssl.pack(path, workers=0, short_side=0))), open_data(str(path))
    assert packed.test.labels.tolist() == there.test.labels.tolist()
    assert packed.test.image(1).tobytes() == there.test.image(1).tobytes()
    with pytest.raises(RequestError, match="no image at"):
        effssl.neighbors(tmp_path / "run", path, f"{path}/album/nothing.png", k=1, workers=0)
    (album / "train/sky/00.jpg").unlink()
    write_zip(album, path)
    with pytest.raises(RequestError):
        effssl.pretrain(str(path), "simsiam", epochs=3, out=tmp_path / "run", resume="auto", **quick)


def test_a_tar_that_ends_with_a_zip_is_a_tar(album: Path, tmp_path: Path) -> None:
    inner = write_zip(album / "test", tmp_path / "inner.zip")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(album / "train", "train")
        tar.add(inner, "inner.zip")
    assert len(open_data(str(tmp_path / "a.tar")).train) == 8


def test_a_link_to_an_archive_keeps_its_name(album: Path, tmp_path: Path) -> None:
    write_zip(album, tmp_path / "blob")
    (tmp_path / "photos.zip").symlink_to(tmp_path / "blob")
    settings = {"encoder": "tiny", "image_size": 16, "batch_size": 4, "epochs": 1, "report": False, "quiet": True}
    run = effssl.pretrain(str(tmp_path / "photos.zip"), "simclr", out=tmp_path / "run", **settings)
    assert run.config.data == str(tmp_path / "photos.zip")
    assert run.knn(k=1).value >= 0


def test_a_size_below_zero_ends_the_reading(tmp_path: Path) -> None:
    header = tarfile.TarInfo("a.jpg").tobuf(tarfile.GNU_FORMAT)
    size = b"\xff" * 10 + b"\xfe\x00"  # base 256: −512
    header = header[:124] + size + header[136:]
    checksum = sum(header[:148]) + 8 * 32 + sum(header[156:512])
    header = header[:148] + f"{checksum:06o}\0 ".encode() + header[156:]
    (tmp_path / "a.tar").write_bytes(header + bytes(1024))
    with pytest.raises(RequestError, match=r"no images in|cannot be read|size below 0"):
        open_data(str(tmp_path / "a.tar"))
