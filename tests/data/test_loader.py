from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as reference
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor

import effssl
from effssl.augment.crop import center_boxes
from effssl.config import Augment
from effssl.data import ArrayImages, FolderImages, open_data
from effssl.data.loader import ViewLoader, clean_batches
from effssl.data.pack import pack
from effssl.data.views import Needs, Own
from effssl.runtime.errors import RequestError

CPU = torch.device("cpu")
CENTER = partial(center_boxes, share=1.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    photo = Image.fromarray(load_sample_image("china.jpg"))
    for i in range(12):
        photo.crop((10 * i, 5 * i, 300 + 20 * i, 200 + 15 * i)).save(tmp_path / f"{i:02}.jpg", quality=95)
    return tmp_path


def loader(images, workers: int = 0, batch: int = 4, views: int = 2, **flags) -> ViewLoader:
    return ViewLoader(images, Augment(**flags), Needs(large=views), batch, 32, 0, CPU, workers)


def test_each_image_once_per_epoch_and_another_order_next(photos: Tensor) -> None:
    images = ArrayImages(photos)
    made = loader(images, batch=16)
    first, second = (torch.cat([b.index for b in made.epoch(e)]) for e in (0, 1))
    assert sorted(first.tolist()) == list(range(64))
    assert not torch.equal(first, second)


def test_last_partial_batch_is_dropped(photos: Tensor) -> None:
    made = loader(ArrayImages(photos[:30]), batch=16)
    assert made.steps == 1
    assert [len(b.index) for b in made.epoch(0)] == [16]


def test_an_epoch_can_start_in_the_middle(photos: Tensor) -> None:
    made = loader(ArrayImages(photos), batch=16)
    whole, rest = list(made.epoch(2)), list(made.epoch(2, first=2))
    assert [b.step for b in rest] == [10, 11]
    for a, b in zip(whole[2:], rest, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a.large, b.large, strict=True))


def test_one_more_view_changes_none_of_the_others(photos: Tensor) -> None:
    one, two = (next(loader(ArrayImages(photos), views=v).epoch(0)) for v in (1, 2))
    assert torch.equal(one.large[0], two.large[0])
    assert not torch.equal(two.large[0], two.large[1])


EVERYTHING = Needs(large=2, small=True, clean=True, own=Own(3, 16, (0.2, 1.0)))
RICH = Augment(small=2, small_size=24, blur=(0.8, 0.2), solarize=(0.0, 0.4))


def everything(images, rows: slice = slice(None), batch: int = 12) -> list[list[Tensor]]:
    """All views of every step of an epoch, of all kinds."""
    made = ViewLoader(images, RICH, EVERYTHING, batch, 32, 0, CPU, 0, keep_partial=True, rows=rows)
    found = []
    for views in made.epoch(1):
        assert views.clean is not None
        found.append([*views.large, *views.small, *views.own, views.clean])
        assert [x.shape[-1] for x in found[-1]] == [32] * 2 + [24] * 2 + [16] * 3 + [32]
    return found


@pytest.mark.parametrize("kind", ["memory", "folder", "pack"])
def test_many_steps_drawn_at_once_are_those_drawn_one_by_one(
    photos: Tensor, folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = {"memory": lambda: ArrayImages(photos[:40, :, :30, :30])} | {
        "folder": lambda: open_data(str(folder)).train,
        "pack": lambda: open_data(str(pack(folder))).train,
    }
    images, batch = many[kind](), 5 if kind != "memory" else 12  # the last batch is a partial one
    at_once = everything(images, batch=batch)
    assert len(at_once) == -(-len(images) // batch)
    monkeypatch.setattr("effssl.data.loader.DRAWN", 1)
    for a, b in zip(at_once, everything(images, batch=batch), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("batch", "middle"), [(12, 6), (150, 60)])  # the second is more than share an order of changes
def test_two_processes_make_the_views_of_one(photos: Tensor, batch: int, middle: int) -> None:
    images = ArrayImages(photos[:, :, :30, :34].repeat(3, 1, 1, 1)[: max(36, batch)])
    made = [everything(images, rows, batch)[:1] for rows in (slice(0, middle), slice(middle, batch))]
    for whole, halves in zip(everything(images, batch=batch)[:1], zip(*made, strict=True), strict=True):
        for x, first, second in zip(whole, *halves, strict=True):
            assert torch.allclose(x, torch.cat([first, second]), atol=1e-5)


def test_views_of_a_pack_of_small_images_come_again(tmp_path: Path) -> None:
    """Images of different sizes, all smaller than the view: nothing but their own pixels is seen."""
    photo = Image.fromarray(load_sample_image("china.jpg"))
    for i in range(12):
        photo.crop((0, 0, 70 + 3 * i, 100 - 2 * i)).save(tmp_path / f"{i:02}.png")
    made = ViewLoader(open_data(str(pack(tmp_path))).train, Augment(), Needs(), 6, 128, 0, CPU)
    first = [view for views in made.epoch(0) for view in views.large]
    for _ in range(3):
        torch.full((1 << 20,), 250, dtype=torch.uint8)  # memory that is not zero
        again = [view for views in made.epoch(0) for view in views.large]
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_pack_is_cut_a_few_images_at_a_time_as_all_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = open_data(str(pack(folder))).train
    whole = everything(images)
    monkeypatch.setattr("effssl.data.loader.AT_ONCE", 5)
    for a, b in zip(whole, everything(images), strict=True):
        assert all(torch.allclose(x, y, atol=1e-4) for x, y in zip(a, b, strict=True))


def test_workers_do_not_change_the_views(folder: Path) -> None:
    images = open_data(str(folder)).train
    assert isinstance(images, FolderImages)
    batches = [list(loader(images, workers).epoch(0)) for workers in (0, 1, 2)]
    for other in batches[1:]:
        for a, b in zip(batches[0], other, strict=True):
            assert torch.equal(a.index, b.index)
            assert all(torch.equal(x, y) for x, y in zip(a.large, b.large, strict=True))


def test_crops_of_files_equal_crops_of_arrays(folder: Path) -> None:
    """The way through worker processes and the way through memory make the same view of the same image."""
    from effssl.data.folder import decode

    Image.open(folder / "03.jpg").save(folder / "exact.png")
    pixels = reference.pil_to_tensor(decode(folder / "exact.png"))
    plain = {"jitter": 0, "gray": 0, "scale": (0.5, 1.0)}
    from_memory = next(loader(ArrayImages(pixels[None]), batch=1, **plain).epoch(0))
    images = open_data(str(folder)).train
    for row, tolerance in ((12, 2 / 255), (3, 20 / 255)):  # rounding to uint8; and a JPEG decoded at a smaller scale
        from_file = next(loader(images.select(torch.tensor([row])), batch=1, **plain).epoch(0))
        for a, b in zip(from_file.large, from_memory.large, strict=True):
            assert (a - b).abs().max() * 0.229 < tolerance


def test_a_file_that_cannot_be_decoded_is_left_out(folder: Path, capsys: pytest.CaptureFixture) -> None:
    content = (folder / "05.jpg").read_bytes()
    (folder / "05.jpg").write_bytes(content[: len(content) // 3])  # the header is fine
    data = open_data(str(folder))
    assert len(data.train) == 12
    batches = list(loader(data.train).epoch(0))
    assert [len(b.large[0]) for b in batches] == [4, 4, 4]
    assert "05.jpg" in capsys.readouterr().err
    assert 5 not in torch.cat([b.index for b in batches])  # its label is not trained on either
    rows = torch.cat([rows for _, rows in clean_batches(data.train, 32, CENTER, 4, workers=0)])
    assert rows.tolist() == [i for i in range(12) if i != 5]  # and no other image stands in for it in an evaluation


def test_a_broken_file_shifts_no_label(tmp_path: Path) -> None:
    """Two classes that differ in color, one truncated file: health and probes still pair images with their labels."""
    noise = np.random.default_rng(0)
    for part, count in (("train", 30), ("test", 6)):
        for label, color in (("dark", 40), ("light", 200)):
            (tmp_path / part / label).mkdir(parents=True)
            for i in range(count):
                pixels = noise.integers(color - 30, color + 30, (80, 90, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / label / f"{i:02}.jpg")
    for name in ("train/dark/03.jpg", "train/light/29.jpg", "test/dark/00.jpg"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2])
    run = effssl.pretrain(
        str(tmp_path), "simclr", epochs=1, batch_size=16, image_size=32, out=tmp_path / "r", quiet=True
    )
    assert run.linear(epochs=10).accuracy > 90
    score = run.knn(k=5)
    assert score.accuracy > 90


def test_clean_batches_are_the_center(folder: Path) -> None:
    data = open_data(str(folder))
    pixels, rows = next(clean_batches(data.train, 32, CENTER, 12, workers=0))
    assert rows.tolist() == list(range(12))
    image = Image.open(data.train.paths[0])  # 300×200
    expected = reference.pil_to_tensor(image.resize((32, 32), Image.Resampling.BILINEAR, box=(50, 0, 250, 200)))
    assert (pixels[0].int() - expected.int()).abs().float().mean() < 1  # a JPEG decoded at a smaller scale


def test_pretrain_on_a_folder_without_labels(folder: Path, tmp_path: Path) -> None:
    (folder / "broken.jpg").write_bytes(b"nothing")
    run = effssl.pretrain(
        str(folder), "simsiam+rotation", epochs=2, batch_size=4, image_size=32, out=tmp_path / "run", quiet=True
    )
    assert (run.folder / "unreadable.txt").read_text().splitlines() == [str(folder / "broken.jpg")]
    last = run.metrics()[-1]
    assert "knn" not in last
    assert last["verdict"] in ("learning", "collapsing", "too early to tell")
    photo = Image.open(folder / "00.jpg")
    assert run.encoder().embed([photo]).shape == (1, run.encoder().dim)
    with pytest.raises(effssl.RequestError, match="no labels"):
        run.knn()


def test_padded_crops_equal_torchvision(photos: Tensor) -> None:
    """RotNet's crop: the image moved over a black border, nothing resampled."""
    images = ArrayImages(photos[:8])
    config = Augment(pad=4, flip=0.0, jitter=0.0, gray=0.0, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    loader = ViewLoader(images, config, Needs(large=1), 8, 96, 0, torch.device("cpu"))
    views = next(loader.epoch(0))
    moves = loader.boxes(loader.kinds[0], loader.draws([0])[0], [0], views.index)[:, :2]
    assert moves.abs().max() <= 4
    assert len(moves.unique(dim=0)) > 4
    for view, row, (top, left) in zip(views.large[0], views.index, moves.tolist(), strict=True):
        padded = reference.pad(photos[row], [4])
        expected = reference.crop(padded, top + 4, left + 4, 96, 96)
        assert torch.allclose(view * 255, expected.float(), atol=1e-2)


def test_padded_crops_are_for_small_images_only(folder: Path) -> None:
    with pytest.raises(RequestError, match="photographs take resized crops"):
        ViewLoader(open_data(str(folder)).train, Augment(pad=4), Needs(large=1), 4, 32, 0, torch.device("cpu"))
