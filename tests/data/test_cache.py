"""Decoded images on the disk: the same views to the bit, and what fits, is replaced, is damaged, is shared."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor

import effssl
from effssl.augment.options import Augment, ViewGroup
from effssl.data import Images, cache, decoding, open_data
from effssl.data.cache import ImageCache, level_of, open_cache
from effssl.data.formats import is_raw
from effssl.data.image_files import decode
from effssl.data.loader import Batching, ViewLoader, ViewSpec
from effssl.runtime.errors import RequestError

SPEC = ViewSpec(Augment(scale=(0.2, 1.0)), {"large": ViewGroup(count=2), "small": ViewGroup(count=1, size=0.5)}, 24)
QUICK = {"batch_size": 4, "image_size": 24, "workers": 0, "encoder": "tiny"}


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Photographs of many sizes and formats, one of them turned by EXIF."""
    photo = Image.fromarray(load_sample_image("china.jpg"))
    (tmp_path / "album").mkdir()
    for i in range(9):
        part = photo.crop((10 * i, 5 * i, 240 + 40 * i, 200 + 25 * i))
        part = part.convert("L") if i == 4 else part
        exif = Image.Exif()
        exif[0x0112] = 6 if i == 3 else 1
        part.save(tmp_path / f"album/{i}.{('jpg', 'jpg', 'png')[i % 3]}", exif=exif)
    return tmp_path / "album"


def views(images: Images, store: ImageCache | None = None, workers: int = 0, epochs: int = 3) -> Tensor:
    loader = ViewLoader(images, SPEC, Batching(3, 0, workers=workers), torch.device("cpu"))
    loader.use_cache(store)
    batches = [batch for epoch in range(epochs) for batch in loader.epoch(epoch)]
    return torch.cat([batch.pixels[name].flatten() for batch in batches for name in ("large", "small")])


@pytest.fixture
def store(tmp_path: Path) -> ImageCache:
    (tmp_path / "kept").mkdir()
    return ImageCache(tmp_path / "kept")


def never(*_: object) -> None:
    raise AssertionError("decoded again")


def entries(store: ImageCache) -> list[Path]:
    return sorted(Path(path) for path, _ in store.entries())


@pytest.mark.parametrize("shrink", [0.05, 0.11, 0.124, 0.125, 0.2, 0.26, 0.3, 0.49, 0.5, 0.7, 1.0, 3.0])
def test_a_level_is_the_size_that_a_jpeg_is_decoded_at(shrink: float) -> None:
    for width, height in ((640, 427), (97, 131), (16, 8), (7, 1)):
        content = io.BytesIO()
        Image.new("RGB", (width, height)).save(content, "JPEG")
        level = level_of(height, width, shrink)
        assert decode(content.getvalue(), shrink).size == (-(-width // level), -(-height // level))


def zipped(album: Path) -> str:
    with zipfile.ZipFile(album.with_suffix(".zip"), "w") as file:
        for path in sorted(album.iterdir()):
            file.write(path, path.name)
    return str(album.with_suffix(".zip"))


@pytest.mark.parametrize("spec", [str, zipped, lambda album: f"{album} + {zipped(album)}"])
def test_views_are_the_same_to_the_bit(
    album: Path, store: ImageCache, spec: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = open_data(spec(album)).train
    expected = views(images)
    assert torch.equal(views(images, store, workers=2), expected)
    assert len(entries(store)) >= len(images)  # and levels of some
    monkeypatch.setattr(decoding, "decode_picture", never)
    assert torch.equal(views(images, store), expected)


@pytest.fixture
def bands(tmp_path: Path) -> Path:
    """Images of twelve channels of 16 bits as compressed TIFF; one of them is a .npy file."""
    (tmp_path / "bands").mkdir()
    values = np.arange(70 * 90 * 12).reshape(70, 90, 12).astype(np.uint16) * 13
    for i in range(5):
        some = np.roll(values, 5 * i, 0)
        tifffile.imwrite(
            tmp_path / f"bands/{i}.tif", some, photometric="minisblack", planarconfig="contig", compression="zlib"
        )
    np.save(tmp_path / "bands/5.npy", values)
    return tmp_path / "bands"


def deep_of(bands: Path) -> Path:
    """Pictures of 16 bits."""
    for path in bands.iterdir():
        path.unlink()
    for i in range(6):
        deep = (np.arange(70 * 90).reshape(70, 90) * (i + 1)).astype(np.uint16)
        Image.fromarray(deep).save(bands / f"{i}.png")
    return bands


@pytest.mark.parametrize(("folder", "count", "size"), [(lambda bands: bands, 5, 12 * 2), (deep_of, 6, 2)])
def test_other_channels_and_depths_are_kept_with_all_their_values(
    bands: Path, store: ImageCache, folder: Callable[[Path], Path], count: int, size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    images = open_data(str(folder(bands))).train
    expected = deep_views(images)
    assert torch.equal(deep_views(images, store, workers=2), expected)
    assert [path.stat().st_size - cache.ARRAY_HEADER.size - cache.CHECKSUM.size for path in entries(store)] == [
        size * 70 * 90
    ] * count
    (files,) = ViewLoader(images, deep_spec(images), Batching(3, 0, workers=0), torch.device("cpu")).decoded_files()
    assert {path.name.partition("-")[0] for path in entries(store)} == files.keys()
    assert files.bytes_needed() == count * size * 70 * 90
    real = decoding.read_pixels
    monkeypatch.setattr(
        decoding, "read_pixels", lambda source, of: real(source, of) if is_raw(str(source)) else never()
    )
    assert torch.equal(deep_views(images, store), expected)
    monkeypatch.undo()
    for number, path in enumerate(entries(store)):
        content = path.read_bytes()
        path.write_bytes((b"", content[:-1], b"x" * len(content))[number % 3])
    assert torch.equal(deep_views(images, store), expected)


def deep_spec(images: Images) -> ViewSpec:
    channels = images.pixel_format.channels
    augment = Augment(pixels=images.pixel_format, mean=(0.5,) * channels, std=(0.2,) * channels)
    return ViewSpec(augment, {"large": ViewGroup(count=2)}, 24)


def deep_views(images: Images, store: ImageCache | None = None, workers: int = 0) -> Tensor:
    loader = ViewLoader(images, deep_spec(images), Batching(3, 0, workers=workers), torch.device("cpu"))
    loader.use_cache(store)
    return torch.cat([batch.pixels["large"] for epoch in range(2) for batch in loader.epoch(epoch)], 1)


def test_each_image_is_decoded_at_each_level_once(album: Path, store: ImageCache) -> None:
    for shrink in (0.2, 0.1, 1.0, 0.3):
        counted = []
        for path in (album / "0.jpg", album / "2.png"):
            size, stamp = decode(path).size[::-1], decoding.stamp_of(path)
            for _ in range(2):
                counted += [store.decoded(stamp, size, shrink, partial(decode, path, shrink))]
        assert [image.tobytes() for image in counted[::2]] == [image.tobytes() for image in counted[1::2]]
    assert sorted(path.name.partition("-")[2] for path in entries(store)) == ["1", "1", "2", "4", "8"]


def test_a_file_that_is_replaced_is_decoded_again(album: Path, store: ImageCache) -> None:
    images = open_data(str(album)).train
    views(images, store)
    before = entries(store)
    path = album / "2.png"
    Image.open(path).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(path)
    os.utime(path, ns=(1, 1))
    assert torch.equal(views(images, store), views(images))
    assert len(entries(store)) == len(before) + 1


def test_damaged_entries_and_a_folder_that_is_gone_do_no_harm(album: Path, store: ImageCache) -> None:
    images = open_data(str(album)).train
    expected = views(images, store)
    for number, path in enumerate(entries(store)):
        content = path.read_bytes()
        flipped = content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]
        path.unlink()
        path.write_bytes((b"", content[:-1], b"x" * len(content), flipped)[number % 4]) if number else os.mkfifo(path)
    assert torch.equal(views(images, store), expected)
    shutil.rmtree(store.folder)
    assert torch.equal(views(images, store), expected)


def test_a_full_disk_ends_nothing(album: Path, store: ImageCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "RESERVED", 1 << 62)
    images = open_data(str(album)).train
    assert torch.equal(views(images, store), views(images))
    assert entries(store) == []


def test_what_was_not_used_for_longest_makes_room(
    album: Path, store: ImageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = open_data(str(album)).train
    views(images, store)
    loader = ViewLoader(images.select(torch.arange(3)), SPEC, Batching(3, 0, workers=0), torch.device("cpu"))
    (files,) = loader.decoded_files()
    kept = {path for path in entries(store) if path.name.partition("-")[0] in files.keys()}  # noqa: SIM118
    others = [path for path in entries(store) if path not in kept]
    for number, path in enumerate(others):
        os.utime(path, (number, number))
    for path in kept:
        os.utime(path, (0, 0))
    used = sum(path.stat().st_size for path in entries(store))
    most = sum(path.stat().st_size for path in others[1:])
    (store.folder / "ab").mkdir(exist_ok=True)
    (store.folder / "ab/holiday.jpg").touch()  # somebody's own
    os.utime(store.folder / "ab/holiday.jpg", (0, 0))
    monkeypatch.setattr(
        cache.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(0, 0, 2 * (most + 100) - used)
    )
    assert store.make_room(100, files.keys) == 0
    assert entries(store) == sorted([*kept, *others[1:]])
    assert store.make_room(most + 101, files.keys) > 0  # and nothing is removed in vain
    assert (store.folder / "ab/holiday.jpg").is_file()


def said_by(value: str, images: Images, epochs: int = 10) -> list[str]:
    loader = ViewLoader(images, SPEC, Batching(3, 0, workers=0), torch.device("cpu"))
    lines: list[str] = []
    open_cache(value, loader.decoded_files(), epochs, lines.append)
    return lines


def test_auto_keeps_what_is_worth_it_and_fits(album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFFSSL_DATA", str(tmp_path / "data"))
    images = open_data(str(album)).train
    assert said_by("auto", images) == []  # decoded within a minute
    assert said_by("off", images) == []
    monkeypatch.setattr(cache, "WORTH", 1e6)
    assert said_by("auto", images, epochs=1) == []
    (line,) = said_by("auto", images)
    assert line.startswith(f"decoded images are kept in {tmp_path}/data/decoded, up to 0.0 GB")
    monkeypatch.setattr(cache, "SHARE", 0.0)
    (line,) = said_by("auto", images)
    assert "decoded in every epoch" in line
    with pytest.raises(RequestError, match="half of the free space is 0"):
        said_by(str(tmp_path / "here"), images)
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="is not a folder that can be written"):
        said_by(str(tmp_path / "file"), images)
    assert said_by("auto", open_data("digits").train, epochs=10**9) == []


def test_a_run_with_a_cache_is_the_same_run(album: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    plain = effssl.pretrain(str(album), "simsiam", epochs=2, out=tmp_path / "plain", quiet=True, **QUICK)
    kept = tmp_path / "kept"
    run = effssl.pretrain(str(album), "simsiam", epochs=1, out=tmp_path / "run", cache=str(kept), **QUICK)
    assert f"decoded images are kept in {kept}" in capsys.readouterr().err
    first = entries(ImageCache(kept))
    assert len(first) >= 8
    again = effssl.pretrain(
        str(album), "simsiam", epochs=1, out=tmp_path / "again", cache=str(kept), quiet=True, **QUICK
    )
    assert entries(ImageCache(kept)) == first  # the same files, the same crops: nothing is decoded anew
    effssl.pretrain(str(album), "simsiam", epochs=2, out=again.folder, resume="auto", quiet=True, **QUICK)
    assert run.config.cache == str(kept)
    cached = effssl.pretrain(
        str(album), "simsiam", epochs=2, out=tmp_path / "cached", cache=str(kept), quiet=True, **QUICK
    )
    weights = [(one.folder / "encoder.safetensors").read_bytes() for one in (plain, cached)]
    assert weights[0] == weights[1]
