"""WebDataset shards: images and labels by key, over several tar files, without unpacking them."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

import effssl
from effssl.data import open_data, webdataset
from effssl.data.archive import ArchiveImages
from effssl.runtime.errors import RequestError

Files = dict[str, bytes]


def encoded(pixels: Tensor, kind: str = "JPEG") -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(content, kind)
    return content.getvalue()


def write_shard(path: Path, files: Files) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def shards(tmp_path: Path, photos: Tensor) -> str:
    """Four shards of three photographs with a class each."""
    for shard in range(4):
        files: Files = {}
        for i in range(3 * shard, 3 * shard + 3):
            files |= {f"{i:04}.jpg": encoded(photos[5 * i]), f"{i:04}.cls": b"%d" % (i % 2 * 10), f"{i:04}.txt": b"x"}
        write_shard(tmp_path / f"train-{shard:04}.tar", files)
    return str(tmp_path / "train-{0000..0003}.tar")


def test_ranges_and_patterns_are_the_same(shards: str, photos: Tensor) -> None:
    data = open_data(shards)
    assert data.name == "train"
    assert isinstance(data.train, ArchiveImages)
    assert [path.name for path in data.train.paths] == [f"{i:04}.jpg" for i in range(12)]
    assert data.train.classes == ["0", "10"]
    assert data.train.labels.tolist() == [0, 1] * 6
    assert data.train.sizes.tolist() == [[96, 96]] * 12
    with Image.open(io.BytesIO(encoded(photos[35]))) as image:
        assert data.train.image(7).tobytes() == image.tobytes()
    same = open_data(shards.replace("{0000..0003}", "*"))
    assert same.train.fingerprint() == data.train.fingerprint()
    some = open_data(shards.replace("0000..", "0002.."))
    assert len(some.train) == 6
    assert open_data(shards, "none").train.labels is None


def test_a_single_shard_is_recognized(tmp_path: Path, photos: Tensor) -> None:
    files: Files = {}
    for i in range(3):
        about = {"label": ("sky", "roof")[i % 2], "caption": "…"}
        files |= {f"a/{i}.png": encoded(photos[i], "PNG"), f"a/{i}.json": json.dumps(about).encode()}
    data = open_data(str(write_shard(tmp_path / "one.tar", files)))
    assert data.train.classes == ["roof", "sky"]
    assert data.train.labels.tolist() == [1, 0, 1]
    captions = {name: content if name.endswith("png") else b'{"caption": "a"}' for name, content in files.items()}
    assert open_data(str(write_shard(tmp_path / "two.tar", captions))).train.labels is None


def test_other_images_of_a_key_are_not_used(tmp_path: Path, photos: Tensor) -> None:
    files = {"0.jpg": encoded(photos[0]), "0.mask.png": encoded(photos[1], "PNG"), "0.cls": b"1"}
    data = open_data(str(write_shard(tmp_path / "one.tar", files)))
    assert [path.name for path in data.train.paths] == ["0.jpg"]


def test_an_index_is_built_once(shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFFSSL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(webdataset, "KEPT_FROM", 12)
    first = open_data(shards)
    kept = list((tmp_path / "data/shards").iterdir())
    assert len(kept) == 1

    def never(_: object) -> None:
        raise AssertionError("scanned again")

    with monkeypatch.context() as patch:
        patch.setattr(webdataset, "build_index", never)
        again = open_data(shards)
    assert again.train.fingerprint() == first.train.fingerprint()
    assert again.train.classes == first.train.classes
    assert torch.equal(again.train.sizes, first.train.sizes)
    kept[0].write_bytes(b"damaged")
    assert open_data(shards).train.fingerprint() == first.train.fingerprint()
    shard = Path(shards.replace("{0000..0003}", "0001"))
    with tarfile.open(shard) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}
    write_shard(shard, files | {"0003.cls": b"10", "0004.cls": b"0"})
    assert open_data(shards).train.labels.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    assert len(list((tmp_path / "data/shards").iterdir())) == 2


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"0.txt": b"no image"}, "holds no images"),
        ({"0.jpg": b"no image"}, "none of the 1 image files"),
        (
            {"0.jpg": None, "0.cls": b"1", "1.jpg": None},
            r"1 of 2 images have a label in a \.cls file, but .*1\.jpg has none",
        ),
        ({"0.jpg": None, "0.json": b"{"}, r"0\.json holds no label"),
    ],
)
def test_shards_that_cannot_be_used(tmp_path: Path, photos: Tensor, files: dict, says: str) -> None:
    content = {name: encoded(photos[0]) if some is None else some for name, some in files.items()}
    write_shard(tmp_path / "a-0.tar", content)
    with pytest.raises(RequestError, match=says) as error:
        open_data(str(tmp_path / "a-{0..0}.tar"))
    assert "\n" not in str(error.value)


def test_shards_that_are_not_there(shards: str) -> None:
    with pytest.raises(RequestError, match=r"there is no shard .*train-0004\.tar"):
        open_data(shards.replace("0003", "0004"))
    with pytest.raises(RequestError, match="no files match"):
        open_data(shards.replace("{0000..0003}", "*nothing*"))
    with pytest.raises(RequestError, match="is no range"):
        open_data(shards.replace("{0000..0003}", "{3..1}"))
    with pytest.raises(RequestError, match="out= is needed"):
        effssl.pack(shards)


def test_shards_train_resume_evaluate_embed_and_pack(shards: str, tmp_path: Path) -> None:
    quick = {"batch_size": 4, "image_size": 32, "workers": 1, "quiet": True, "encoder": "tiny"}
    run = effssl.pretrain(shards, "simsiam", epochs=1, out=tmp_path / "run", **quick)
    assert run.config.data == shards
    effssl.pretrain(shards, "simsiam", epochs=2, out=tmp_path / "run", resume="auto", **quick)
    Path(shards.replace("{0000..0003}", "0003")).rename(tmp_path / "test-0003.tar")
    whole = str(tmp_path / "*.tar")
    assert 0 <= effssl.Run(tmp_path / "run").evaluate("knn", whole, k=2).value <= 100
    assert [len(open_data(whole).train), len(open_data(whole).test)] == [9, 3]
    (tmp_path / "test-0003.tar").rename(shards.replace("{0000..0003}", "0003"))
    features = effssl.embed(tmp_path / "run", shards, tmp_path / "features.npz", workers=0)
    assert features.names[4].endswith("train-0001.tar/0004.jpg")
    packed = open_data(str(effssl.pack(shards, tmp_path / "packed", workers=0)))
    assert packed.train.labels.tolist() == [0, 1] * 6
