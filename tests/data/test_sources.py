"""Every place images can come from, with files written for the purpose."""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

import effssl
from effssl.augment.options import Augment, ViewGroup
from effssl.data import ArrayImages, FolderImages, Images, arrays, cifar, open_data
from effssl.data.dataset import Data, validation_split
from effssl.data.image_files import decode
from effssl.data.loader import Batching, ViewLoader, ViewSpec
from effssl.data.mapped import MappedImages
from effssl.runtime.errors import RequestError


def test_digits_are_real_and_split() -> None:
    data = open_data("digits")
    assert data.train.pixels.shape == (1437, 3, 8, 8)
    assert data.train.pixels.max() == 255
    assert sorted(data.train.labels.unique().tolist()) == list(range(10))
    assert data.train.fingerprint() == open_data("digits").train.fingerprint() != data.test.fingerprint()


# ---------------------------------------------------------------------------------------------------------------
# Arrays


@pytest.mark.parametrize("shape", [(6, 9, 9), (6, 9, 9, 1), (6, 9, 9, 3), (6, 9, 9, 4), (6, 3, 9, 9)])
def test_npy_layouts(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    if shape[-1] == 4:
        array[..., 3] = 255  # an alpha channel that hides nothing
    np.save(tmp_path / "a.npy", array)
    images = open_data(str(tmp_path / "a.npy")).train
    assert images.pixels.shape == (6, 3, 9, 9)
    assert images.labels is None
    last = array.reshape(6, 9, 9) if array.size == 6 * 81 else array[..., 0] if shape[-1] in (3, 4) else array[:, 0]
    assert np.array_equal(images.pixels[:, 0].numpy(), last)


def test_npz_with_labels_and_test_images(tmp_path: Path) -> None:
    images = np.zeros((4, 5, 5, 3), np.uint8)
    labels = np.array(["cat", "dog", "cat", "cow"])
    np.savez(tmp_path / "a.npz", images=images, labels=labels, test_images=images[:2], test_labels=["dog", "cat"])
    data = open_data(str(tmp_path / "a.npz"))
    assert data.train.classes == ["cat", "cow", "dog"]
    assert data.train.labels.tolist() == [0, 2, 0, 1]
    assert data.test.labels.tolist() == [2, 0]  # numbered as in train
    np.savez(tmp_path / "b.npz", images=images, labels=labels, test_images=images[:1], test_labels=["fish"])
    with pytest.raises(RequestError, match="fish"):
        open_data(str(tmp_path / "b.npz"))


@pytest.mark.parametrize(
    ("shape", "kind", "channels", "depth"),
    [
        ((6, 12, 20, 20), "uint16", 12, "uint16"),
        ((6, 20, 20, 12), "uint16", 12, "uint16"),
        ((6, 20, 20, 4), "uint8", 4, "uint8"),  # a fourth channel that is no alpha
        ((6, 20, 20), "uint16", 1, "uint16"),
        ((6, 20, 20, 3), "int64", 3, "uint8"),  # whole numbers in a larger type than they need
        ((6, 20, 20, 2), "int16", 2, "float32"),
    ],
)
def test_npy_of_other_channels_and_types(
    tmp_path: Path, shape: tuple[int, ...], kind: str, channels: int, depth: str
) -> None:
    low = -300 if kind == "int16" else 0
    array = np.random.default_rng(0).integers(low, 250, shape).astype(kind)
    np.save(tmp_path / "a.npy", array)
    images = open_data(str(tmp_path / "a.npy")).train
    assert (images.pixel_format.channels, images.pixel_format.depth) == (channels, depth)
    assert images.pixels.shape == (6, channels, 20, 20)
    assert np.array_equal(np.sort(images.pixels.double().flatten()), np.sort(array.astype(float).flatten()))


def test_floats_keep_their_values_and_state_their_range(tmp_path: Path) -> None:
    np.save(tmp_path / "f.npy", np.full((3, 4, 4, 3), 0.501))
    unit = open_data(str(tmp_path / "f.npy")).train
    assert torch.allclose(unit.pixels, torch.tensor(0.501))
    assert unit.pixel_format.range == (0, 1)
    np.save(tmp_path / "g.npy", np.linspace(-2, 5, 3 * 16 * 3).reshape(3, 4, 4, 3))
    assert open_data(str(tmp_path / "g.npy")).train.pixel_format.range == (-2, 5)


LAYOUTS = {
    "last": ((7, 9, 11, 3), "uint8"), "first": ((7, 5, 9, 11), "uint16"), "gray": ((7, 9, 11), "uint8"),
    "opaque": ((7, 9, 11, 4), "uint8"), "floats": ((7, 9, 11, 2), "float64"),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_large_npy_file_is_mapped_and_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    shape, kind = LAYOUTS[layout]
    array = np.random.default_rng(0).integers(0, 250, shape).astype(kind)
    if layout == "opaque":
        array[..., 3] = 255
    np.save(tmp_path / "a.npy", array)
    whole = open_data(str(tmp_path / "a.npy"))
    monkeypatch.setattr(arrays, "LARGE", array.nbytes)
    mapped = open_data(str(tmp_path / "a.npy"))
    assert isinstance(whole.train, ArrayImages)
    assert isinstance(mapped.train, MappedImages)
    assert (mapped.name, mapped.train.pixel_format) == (whole.name, whole.train.pixel_format)
    assert torch.equal(mapped.train.sizes, whole.train.sizes)
    some = torch.tensor([5, 0, 6, 2])
    for a, b in ((whole.train, mapped.train), (whole.train.select(some), mapped.train.select(some))):
        assert torch.equal(views(a), views(b))
        assert np.array_equal(a.array(1), b.array(1))
        assert a.image(2).tobytes() == b.image(2).tobytes()
    assert mapped.train.fingerprint() == open_data(str(tmp_path / "a.npy")).train.fingerprint()
    assert mapped.train.fingerprint() != mapped.train.select(some).fingerprint()
    array[3] = 0
    np.save(tmp_path / "a.npy", array)
    assert mapped.train.fingerprint() != open_data(str(tmp_path / "a.npy")).train.fingerprint()


def views(images: Images) -> torch.Tensor:
    augment = Augment(pixels=images.pixel_format, mean=(0.5,) * images.pixel_format.channels,
                      std=(0.2,) * images.pixel_format.channels)  # fmt: skip
    loader = ViewLoader(
        images, ViewSpec(augment, {"large": ViewGroup(count=2)}, 8), Batching(2, 0), torch.device("cpu")
    )
    return torch.cat([batch.pixels["large"].flatten() for batch in loader.epoch(0)])


def test_a_mapped_file_trains_resumes_evaluates_and_embeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "LARGE", 1)
    np.save(tmp_path / "a.npy", np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), np.uint8))
    quick = {"batch_size": 8, "quiet": True, "encoder": "tiny", "out": tmp_path / "run"}
    effssl.pretrain(str(tmp_path / "a.npy"), "simsiam", epochs=1, **quick)
    run = effssl.pretrain(str(tmp_path / "a.npy"), "simsiam", epochs=2, resume="auto", **quick)
    assert run.config.image_size == 16
    assert 0 <= run.evaluate("agreement").value <= 100
    assert len(effssl.embed(run.folder, tmp_path / "a.npy", tmp_path / "features.npz").names) == 40


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: content[:90]])
def test_a_large_file_that_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 9, 9, 3), np.uint8))
    (tmp_path / "a.npy").write_bytes(damage((tmp_path / "a.npy").read_bytes()))
    monkeypatch.setattr(arrays, "LARGE", 1)
    with pytest.raises(RequestError, match="is not a readable NumPy file"):
        open_data(str(tmp_path / "a.npy"))


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"pictures": np.zeros((2, 4, 4))}, "no array named images"),
        ({"images": np.zeros((2, 4), np.uint8)}, "expected N×H×W"),
        ({"images": np.zeros((0, 4, 4), np.uint8)}, "holds no images"),
        ({"images": np.zeros((2, 4, 4), np.uint8), "labels": np.zeros(3)}, "one label per image"),
    ],
)
def test_npz_that_cannot_be_used(tmp_path: Path, arrays: dict, says: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(RequestError, match=says):
        open_data(str(tmp_path / "a.npz"))


def test_object_arrays_are_refused_without_running_anything(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    np.save(tmp_path / "bomb.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(RequestError, match="Python objects"):
        open_data(str(tmp_path / "bomb.npy"))
    (tmp_path / "noise.npy").write_bytes(b"no array at all")
    with pytest.raises(RequestError):
        open_data(str(tmp_path / "noise.npy"))
    assert not (tmp_path / "ran").exists()


# ---------------------------------------------------------------------------------------------------------------
# Folders


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """A folder as people have it: depths, sizes, greys, alpha, 16 bits, EXIF, a broken and a hidden file."""
    root = tmp_path / "my photos"
    (root / "2024" / "summer é").mkdir(parents=True)
    photo = Image.fromarray(load_sample_image("flower.jpg"))
    photo.save(root / "a.jpg")
    photo.resize((100, 300)).save(root / "2024" / "tall.png")
    photo.convert("L").save(root / "2024" / "gray.jpeg")
    rgba = photo.resize((80, 60)).convert("RGBA")
    rgba.putalpha(Image.linear_gradient("L").resize((80, 60)))
    rgba.save(root / "2024" / "summer é" / "alpha.PNG")
    deep = (np.arange(70 * 90, dtype=np.uint32).reshape(70, 90) * 10).clip(0, 65535).astype(np.uint16)
    Image.fromarray(deep).save(root / "2024" / "deep.png")
    photo.resize((64, 48)).convert("CMYK").save(root / "cmyk.jpg")
    photo.resize((64, 48)).quantize(16).save(root / "palette.bmp")
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90° to display
    photo.resize((120, 90)).save(root / "turned.webp", exif=exif)
    (root / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing more")
    (root / ".hidden.jpg").write_bytes(b"x")
    (root / "notes.txt").write_text("not an image")
    return root


def test_folder_is_read_recursively_and_broken_files_are_listed(zoo: Path) -> None:
    data = open_data(str(zoo))
    assert isinstance(data.train, FolderImages)
    assert len(data.train) == 8
    assert data.train.labels is None
    assert data.test is None
    assert [Path(path).name for path in data.unreadable] == ["broken.jpg"]
    sizes = dict(zip((p.name for p in data.train.paths), data.train.sizes.tolist(), strict=True))
    assert sizes["a.jpg"] == [427, 640]
    assert sizes["tall.png"] == [300, 100]
    assert sizes["turned.webp"] == [120, 90]  # height, width as displayed


def test_decoding_is_upright_rgb(zoo: Path) -> None:
    data = open_data(str(zoo))
    for path, size in zip(data.train.paths, data.train.sizes.tolist(), strict=True):
        image = decode(path)
        assert image.mode == "RGB"
        assert [image.height, image.width] == size
    alpha = np.asarray(decode(zoo / "2024" / "summer é" / "alpha.PNG"))
    assert (alpha[0] > 250).all()  # fully transparent: white
    deep = np.asarray(decode(zoo / "2024" / "deep.png"))
    assert deep[0, 0, 0] == 0
    assert 240 <= deep[-1, -1, 0] <= 255
    small = decode(zoo / "a.jpg", shrink=0.3)
    assert 0.3 * 427 <= small.height < 427


def test_train_and_test_folders_have_labels(tmp_path: Path) -> None:
    photo = Image.fromarray(load_sample_image("china.jpg"))
    for part in ("train", "val"):
        for i, name in enumerate(("cat", "dog")):
            (tmp_path / part / name).mkdir(parents=True)
            for j in range(2 + i):
                photo.resize((80, 70)).save(tmp_path / part / name / f"{j}.jpg")
    data = open_data(str(tmp_path))
    assert data.train.classes == ["cat", "dog"]
    assert data.train.labels.tolist() == data.test.labels.tolist() == [0, 0, 1, 1, 1]
    assert open_data(str(tmp_path), labels="none").train.labels is None
    assert open_data(str(tmp_path / "train")).train.labels is None
    assert open_data(str(tmp_path / "train"), labels="folders").train.labels.tolist() == [0, 0, 1, 1, 1]
    (tmp_path / "val" / "fish").mkdir()
    photo.save(tmp_path / "val" / "fish" / "x.jpg")
    with pytest.raises(RequestError, match="fish"):
        open_data(str(tmp_path))


def test_flat_train_and_test_folders_have_no_labels(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        for i in range(3):
            Image.new("RGB", (80, 80), (i, 0, 0)).save(tmp_path / part / f"{i}.png")
    data = open_data(str(tmp_path))
    assert data.train.labels is None
    assert (len(data.train), len(data.test)) == (3, 3)


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_with_both_test_is_for_scores_and_val_for_choices(tmp_path: Path, name: str) -> None:
    for part, count in (("train", 4), (name, 2), ("test", 3)):
        for label in ("a", "b"):
            (tmp_path / part / label).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (80, 80), (i, 0, 0)).save(tmp_path / part / label / f"{i}.png")
    data = open_data(str(tmp_path))
    assert (len(data.train), len(data.test), len(data.validation()[1])) == (8, 6, 4)


def test_small_images_of_one_size_live_in_memory(tmp_path: Path) -> None:
    for i in range(4):
        Image.new("RGB", (28, 20), (i, 2, 3)).save(tmp_path / f"{i}.png")
    (tmp_path / "4.png").write_bytes((tmp_path / "0.png").read_bytes()[:60])  # a header, and no pixels
    data = open_data(str(tmp_path))
    assert isinstance(data.train, ArrayImages)
    assert data.train.pixels.shape == (4, 3, 20, 28)
    assert data.train.pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert len(data.unreadable) == 1


# ---------------------------------------------------------------------------------------------------------------
# CIFAR


def write_cifar100(root: Path, noise: np.random.Generator) -> dict[str, np.ndarray]:
    """Files in the layout of the original, with random pixels."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    written = {}
    for part, count in (("train", 50), ("test", 20)):
        data = noise.integers(0, 256, (count, 3072), np.uint8)
        labels = [int(i) % 100 for i in range(count)]
        written[part] = data
        content = {b"data": data, b"fine_labels": labels, b"coarse_labels": labels, b"filenames": [b"x"] * count}
        (folder / part).write_bytes(pickle.dumps(content, protocol=2))
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"n%d" % i for i in range(100)]}, protocol=2))
    return written


def expect_checksums_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the files of a folder for the originals."""
    known = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    monkeypatch.setattr(cifar, "checksums", lambda name: known)


def test_cifar100_layout_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = write_cifar100(tmp_path, np.random.default_rng(0))
    folder = tmp_path / "cifar-100-python"
    expect_checksums_of(folder, monkeypatch)
    arrays = cifar.read_layout("cifar100", lambda file: (folder / file).read_bytes())
    assert arrays["train_images"].shape == (50, 32, 32, 3)
    assert np.array_equal(arrays["train_images"][3, :, :, 1].reshape(-1), written["train"][3, 1024:2048])
    assert arrays["test_labels"].tolist() == list(range(20))
    assert arrays["classes"][7] == "n7"


def test_wrong_data_is_not_taken_for_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar100(tmp_path, np.random.default_rng(0))
    monkeypatch.setenv("EFFSSL_DATA", str(tmp_path))
    expect_checksums_of(tmp_path / "cifar-100-python", monkeypatch)

    def no_network(name: str) -> cifar.Arrays:
        raise OSError("no network in this test")

    monkeypatch.setattr(cifar, "_from_site", no_network)
    with pytest.raises(RequestError) as error:
        open_data("cifar100")
    text = str(error.value)
    assert "(50, 32, 32, 3)" in text  # the data folder was tried and found wanting
    assert "no network in this test" in text
    assert 'data="digits"' in text
    assert "npm" not in text  # which carries CIFAR-10 only
    assert not (tmp_path / "cifar100.npz").exists()


def test_a_data_file_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    content = pickle.dumps({b"data": Bomb()}, protocol=2)
    with pytest.raises(ValueError, match="train does not have the checksum of the original"):
        cifar.read_layout("cifar100", lambda file: content)
    monkeypatch.setattr(cifar, "checksums", lambda name: {"train": hashlib.md5(content).hexdigest()})
    with pytest.raises(pickle.UnpicklingError, match="refused"):  # even if it had
        cifar.read_layout("cifar100", lambda file: content)
    assert not (tmp_path / "ran").exists()


CRASH = b"cnumpy\nndarray\n(I1\ntR(I1\n(I5\ntcnumpy\ndtype\n(S'O'\ntRI00\n(lp0\ntb."


def test_a_data_file_cannot_crash_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Unpickled, these bytes of plain arrays end Python by a segmentation fault."""
    monkeypatch.setenv("EFFSSL_DATA", str(tmp_path))
    said_before: list[str] = []

    def download(name: str = "") -> cifar.Arrays:
        said_before.append(" ".join(capsys.readouterr().err.split()))
        return {}

    monkeypatch.setattr(cifar, "_from_site", download)
    monkeypatch.setattr(cifar, "_from_npm", download)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (folder / name).write_bytes(CRASH)
    with pytest.raises(RequestError, match="data_batch_1 does not have the checksum"):
        open_data("cifar10")
    assert "data_batch_1 does not have the checksum" in said_before[0]


def test_a_damaged_store_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFFSSL_DATA", str(tmp_path))
    (tmp_path / "cifar10.npz").write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(RequestError, match="delete it"):
        open_data("cifar10")


def test_a_damaged_archive_is_one_place_of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFFSSL_DATA", str(tmp_path))
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(b"no archive")
    monkeypatch.setattr(cifar, "_from_site", lambda name: {})
    with pytest.raises(RequestError, match="is not available"):
        open_data("cifar100")


def test_an_archive_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members are read one by one into memory, whatever their names say."""
    monkeypatch.setenv("EFFSSL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(cifar, "_from_site", lambda name: {})
    (tmp_path / "data").mkdir()
    archive = tmp_path / "data" / "cifar-100-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("../evil.txt", f"{tmp_path}/evil.txt", "cifar-100-python/train"):
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"evil"))
    with pytest.raises(RequestError, match="is not available"):
        open_data("cifar100")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [archive]


def test_pixel_statistics_are_exact() -> None:
    images = np.random.default_rng(1).integers(0, 256, (10, 4, 4, 3), np.uint8)
    mean, std = cifar.pixel_statistics(images)
    flat = images.reshape(-1, 3) / 255
    assert np.allclose(mean, flat.mean(0))
    assert np.allclose(std, flat.std(0))


# ---------------------------------------------------------------------------------------------------------------
# Splits


def test_validation_split_is_fixed_balanced_and_disjoint() -> None:
    labels = torch.arange(1000) % 10
    images = ArrayImages(torch.zeros(1000, 3, 1, 1, dtype=torch.uint8), labels)
    train, validation = validation_split(images)
    assert len(validation) == 100
    assert labels[validation].bincount().tolist() == [10] * 10
    assert sorted(torch.cat([train, validation]).tolist()) == list(range(1000))
    assert torch.equal(validation, validation_split(images)[1])
    big = ArrayImages(torch.zeros(60_000, 3, 1, 1, dtype=torch.uint8))
    assert len(validation_split(big)[1]) == 5000


def test_a_subset_keeps_clear_of_the_validation_split() -> None:
    pixels = torch.arange(1000).view(-1, 1, 1, 1).expand(-1, 3, 1, 1) // 4
    images = ArrayImages(pixels.to(torch.uint8), torch.arange(1000) % 10)
    data = Data("x", images).with_subset(600)
    _, validation = validation_split(images)
    assert len(data.train) == 600
    fit, val = data.validation()
    assert len(fit) == 600
    assert torch.equal(val.pixels, images.pixels[validation])
    assert Data("x", images).with_subset(600).train.fingerprint() == data.train.fingerprint()
    with pytest.raises(RequestError, match="901"):
        Data("x", images).with_subset(901)


def test_only_the_named_class_folders_are_read(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for name in ("n3", "n1", "n2"):
            (tmp_path / part / name).mkdir(parents=True)
            Image.new("RGB", (80, 70)).save(tmp_path / part / name / "a.png")
    (tmp_path / "few.txt").write_text("n3\nn1\n")
    data = open_data(str(tmp_path), classes=str(tmp_path / "few.txt"))
    assert data.train.classes == ["n1", "n3"]
    assert [len(data.train), len(data.test)] == [2, 2]
    assert {path.parent.name for path in data.train.paths} == {"n1", "n3"}
    with pytest.raises(RequestError, match="lacks 100 of 100 class folders"):
        open_data(str(tmp_path), classes="imagenet100")
    with pytest.raises(RequestError, match="is not a folder"):
        open_data("digits", classes="imagenet100")
    with pytest.raises(RequestError, match="imagenet100 or a text file"):
        open_data(str(tmp_path), classes="nowhere.txt")
