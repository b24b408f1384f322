from __future__ import annotations

import multiprocessing
from collections.abc import Callable
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
from effssl.augment.options import Augment, ViewGroup
from effssl.data import ArrayImages, FolderImages, open_data
from effssl.data.images import Reading, crop_batches, whole_boxes
from effssl.data.loader import Batching, ViewLoader, ViewSpec
from effssl.data.packing import pack
from effssl.data.views import Views
from effssl.runtime.errors import RequestError
from tests.data.recorded import RecordedImages

CPU = torch.device("cpu")
SERIAL = Reading(workers=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    photo = Image.fromarray(load_sample_image("china.jpg"))
    for i in range(12):
        photo.crop((10 * i, 5 * i, 300 + 20 * i, 200 + 15 * i)).save(tmp_path / f"{i:02}.jpg", quality=95)
    return tmp_path


def loader(images, workers: int = 0, batch: int = 4, views: int = 2, **flags) -> ViewLoader:
    spec = ViewSpec(Augment(**flags), {"large": ViewGroup(count=views)}, 32)
    return ViewLoader(images, spec, Batching(batch, 0, workers=workers), CPU)


def same(a: Views, b: Views) -> bool:
    return torch.equal(a.index, b.index) and all(torch.equal(x, b.pixels[name]) for name, x in a.pixels.items())


def test_each_image_once_per_epoch_and_another_order_next(photos: Tensor) -> None:
    images = ArrayImages(photos)
    batches = loader(images, batch=16)
    first, second = (torch.cat([b.index for b in batches.epoch(e)]) for e in (0, 1))
    assert sorted(first.tolist()) == list(range(64))
    assert not torch.equal(first, second)


def test_last_partial_batch_is_dropped(photos: Tensor) -> None:
    batches = loader(ArrayImages(photos[:30]), batch=16)
    assert batches.steps == 1
    assert [len(b.index) for b in batches.epoch(0)] == [16]


def test_an_epoch_can_start_in_the_middle(photos: Tensor) -> None:
    batches = loader(ArrayImages(photos), batch=16)
    whole, rest = list(batches.epoch(2)), list(batches.epoch(2, first=2))
    assert [b.step for b in rest] == [10, 11]
    assert all(same(a, b) for a, b in zip(whole[2:], rest, strict=True))


def test_one_more_view_changes_none_of_the_others(photos: Tensor) -> None:
    one, two = (next(loader(ArrayImages(photos), views=v).epoch(0)).pixels["large"] for v in (1, 2))
    assert torch.equal(one[0], two[0])
    assert not torch.equal(two[0], two[1])


RICH = Augment(blur=(0.8, 0.2), solarize=(0.0, 0.4))
GROUPS = {
    "large": ViewGroup(count=2),
    "small": ViewGroup(count=2, size=24, scale=(0.05, 0.14)),
    "rotated": ViewGroup(count=3, size=0.5, scale=(0.2, 1.0), rotated=True, upright=0.3),
    "copies": ViewGroup(count=1, copy_of="large", size=0.75, rotated=True, every_angle=True),
}
SIDES = {"large": 32, "small": 24, "rotated": 16, "copies": 24, "clean": 32}


def everything(images, rows: slice = slice(None), batch: int = 12) -> list[dict[str, Tensor]]:
    """All views of every step of an epoch, of all groups, with their angles."""
    spec = ViewSpec(RICH, GROUPS, 32, clean=True)
    views_of = ViewLoader(images, spec, Batching(batch, 0, rows, keep_partial=True, workers=0), CPU)
    assert views_of.sides(0) == SIDES
    found = []
    for views in views_of.epoch(1):
        step = views.pixels | {"clean": views.clean[None]}
        assert {name: x.shape[-1] for name, x in step.items()} == SIDES
        assert [len(step[name]) for name in GROUPS] == [2, 2, 3, 4]
        found.append(step | {f"angles of {name}": positions for name, positions in views.angles.items()})
    return found


def equal(a: list[dict[str, Tensor]], b: list[dict[str, Tensor]], tolerance: float = 0.0) -> bool:
    return all(
        step.keys() == other.keys() and all(torch.allclose(x, other[name], 0, tolerance) for name, x in step.items())
        for step, other in zip(a, b, strict=True)
    )


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
    monkeypatch.setattr("effssl.data.loader.IMAGES_PER_DRAW", 1)
    assert equal(at_once, everything(images, batch=batch))


@pytest.mark.parametrize(("batch", "middle"), [(12, 6), (150, 60)])  # the second is more than a jitter group
def test_two_processes_create_the_views_of_one(photos: Tensor, batch: int, middle: int) -> None:
    images = ArrayImages(photos[:, :, :30, :34].repeat(3, 1, 1, 1)[: max(36, batch)])
    first, second = (everything(images, rows, batch)[0] for rows in (slice(0, middle), slice(middle, batch)))
    halves = {name: torch.cat([x, second[name]], 1) for name, x in first.items()}  # V×B
    assert equal(everything(images, batch=batch)[:1], [halves], 1e-5)


def test_views_of_a_pack_of_small_images_are_reproducible(tmp_path: Path) -> None:
    """Images of different sizes, all smaller than the view: only their own pixels are seen."""
    photo = Image.fromarray(load_sample_image("china.jpg"))
    for i in range(12):
        photo.crop((0, 0, 70 + 3 * i, 100 - 2 * i)).save(tmp_path / f"{i:02}.png")
    spec = ViewSpec(Augment(), {"large": ViewGroup(count=2)}, 128)
    views_of = ViewLoader(open_data(str(pack(tmp_path))).train, spec, Batching(6, 0), CPU)
    first = list(views_of.epoch(0))
    for _ in range(3):
        torch.full((1 << 20,), 250, dtype=torch.uint8)  # memory that is not zero
        assert all(same(a, b) for a, b in zip(first, views_of.epoch(0), strict=True))


def test_a_pack_is_cropped_a_few_images_at_a_time_as_all_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = open_data(str(pack(folder))).train
    whole = everything(images)
    monkeypatch.setattr("effssl.data.pack.PART", 5)
    assert equal(whole, everything(images), 1e-4)


def test_a_batch_of_a_pack_is_not_padded_to_its_largest_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(8):
        side = 900 if i == 3 else 80
        Image.new("RGB", (side, side), (i, 0, 0)).save(tmp_path / f"{i}.png")
    images = open_data(str(pack(tmp_path, short_side=0))).train
    monkeypatch.setattr("effssl.data.pack.PART", 2)
    read = type(images).read
    shapes: list[tuple[int, ...]] = []
    monkeypatch.setattr(type(images), "read", lambda self, rows: [x := read(self, rows), shapes.append(x.shape)][0])
    next(loader(images, batch=8).epoch(0))
    assert sorted(shape[-1] for shape in shapes) == [80, 80, 80, 900]


def test_a_tall_and_a_wide_image_of_a_pack_are_not_padded_to_a_large_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i, size in enumerate([(60, 60), (1200, 60), (60, 1200), (60, 80), (80, 60), (60, 60)]):
        Image.effect_noise(size, 50).convert("RGB").save(tmp_path / f"{i}.png")
    images = open_data(str(pack(tmp_path, short_side=0))).train
    read = type(images).read
    shapes: list[tuple[int, ...]] = []
    monkeypatch.setattr(type(images), "read", lambda self, rows: [x := read(self, rows), shapes.append(x.shape)][0])
    list(crop_batches(images, whole_boxes(images.sizes), 16, 6))
    assert max(shape[2] * shape[3] for shape in shapes) <= 2 * 1200 * 80  # together they would be 1200×1200
    assert sum(shape[0] for shape in shapes) == 6


def test_workers_live_from_epoch_to_epoch(folder: Path) -> None:
    """The next epoch starts none anew, even after one that was left; they end with the run."""

    def children() -> set[int | None]:
        return {child.pid for child in multiprocessing.active_children()}

    before = children()
    images = open_data(str(folder)).train
    batches, serial = loader(images, workers=2), loader(images)
    with batches.kept_workers():
        assert same(next(batches.epoch(0)), next(serial.epoch(0)))
        workers = children() - before
        assert len(workers) == 2
        for epoch in (1, 2):
            assert all(map(same, batches.epoch(epoch), serial.epoch(epoch)))
        assert children() - before == workers
        # Two epochs at once have two workers each, of which two stay.
        assert not any(map(same, batches.epoch(3), batches.epoch(4)))
        assert len(children() - before) == 2
    assert children() == before


def test_workers_do_not_change_the_views(folder: Path) -> None:
    images = open_data(str(folder)).train
    assert isinstance(images, FolderImages)
    batches = [list(loader(images, workers).epoch(0)) for workers in (0, 1, 2)]
    for other in batches[1:]:
        assert all(same(a, b) for a, b in zip(batches[0], other, strict=True))


def test_crops_of_files_equal_crops_of_arrays(folder: Path) -> None:
    """Worker processes and memory give the same view of the same image."""
    from effssl.data.image_files import decode

    Image.open(folder / "03.jpg").save(folder / "exact.png")
    pixels = reference.pil_to_tensor(decode(folder / "exact.png"))
    plain = {"jitter": 0, "gray": 0, "scale": (0.5, 1.0)}
    from_memory = next(loader(ArrayImages(pixels[None]), batch=1, **plain).epoch(0))
    images = open_data(str(folder)).train
    for row, tolerance in ((12, 2 / 255), (3, 20 / 255)):  # rounding to uint8; and a JPEG decoded at a smaller scale
        from_file = next(loader(images.select(torch.tensor([row])), batch=1, **plain).epoch(0))
        difference = from_file.pixels["large"] - from_memory.pixels["large"]
        assert difference.abs().max() * 0.229 < tolerance


def test_a_file_that_cannot_be_decoded_is_left_out(folder: Path, capsys: pytest.CaptureFixture) -> None:
    content = (folder / "05.jpg").read_bytes()
    (folder / "05.jpg").write_bytes(content[: len(content) // 3])  # the header is fine
    data = open_data(str(folder))
    assert len(data.train) == 12
    batches = list(loader(data.train).epoch(0))
    assert [b.pixels["large"].shape[:2] for b in batches] == [(2, 4)] * 3
    assert "05.jpg" in capsys.readouterr().err
    assert 5 not in torch.cat([b.index for b in batches])  # its label is not trained on either
    rows = torch.cat([rows for _, rows in crop_batches(data.train, center_boxes(data.train.sizes, 1.0), 32, 4, SERIAL)])
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


def test_a_batch_of_broken_files_is_an_error_in_training_and_left_out_elsewhere(folder: Path) -> None:
    for path in sorted(folder.iterdir())[:4]:
        path.write_bytes(path.read_bytes()[:2000])
    images = open_data(str(folder)).train
    with pytest.raises(RequestError, match="none of the 4 images of a batch can be decoded"):
        list(loader(images.select(torch.arange(4))).epoch(0))
    batches = list(crop_batches(images, center_boxes(images.sizes, 1.0), 32, 4, SERIAL))
    assert [rows.tolist() for _, rows in batches] == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_center_crops_of_files(folder: Path) -> None:
    data = open_data(str(folder))
    pixels, rows = next(crop_batches(data.train, center_boxes(data.train.sizes, 1.0), 32, 12, SERIAL))
    assert rows.tolist() == list(range(12))
    image = Image.open(data.train.paths[0])  # 300×200
    expected = reference.pil_to_tensor(image.resize((32, 32), Image.Resampling.BILINEAR, box=(50, 0, 250, 200)))
    assert (255 * pixels[0] - expected).abs().mean() < 1  # a JPEG decoded at a smaller scale


def test_pretrain_on_a_folder_without_labels(folder: Path, tmp_path: Path) -> None:
    (folder / "broken.jpg").write_bytes(b"nothing")
    run = effssl.pretrain(
        str(folder), "simsiam+rotation", epochs=2, batch_size=4, image_size=32, out=tmp_path / "run", quiet=True
    )
    assert (run.folder / "unreadable.txt").read_text().splitlines() == [str(folder / "broken.jpg")]
    last = run.metrics()[-1]
    assert "knn" not in last
    assert "agreement of neighbors" in last["why"]  # there are no labels for kNN
    photo = Image.open(folder / "00.jpg")
    assert run.encoder().embed([photo]).shape == (1, run.encoder().dim)
    with pytest.raises(effssl.RequestError, match="no labels"):
        run.knn()


def test_padded_crops_equal_torchvision(photos: Tensor) -> None:
    """RotNet's crop: the image shifted over a black border, nothing resampled."""
    images = RecordedImages(photos[:8])
    config = Augment(pad=4, flip=0.0, jitter=0.0, gray=0.0, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    views = next(ViewLoader(images, ViewSpec(config, {"large": ViewGroup(count=1)}, 96), Batching(8, 0), CPU).epoch(0))
    shifts = images.requests[0].groups["large"].boxes[:, :2]
    assert shifts.abs().max() <= 4
    assert len(shifts.unique(dim=0)) > 4
    for view, row, (top, left) in zip(views.pixels["large"][0], views.index, shifts.tolist(), strict=True):
        padded = reference.pad(photos[row], [4])
        expected = reference.crop(padded, top + 4, left + 4, 96, 96)
        assert torch.allclose(view * 255, expected.float(), atol=1e-2)


def test_padded_crops_are_for_small_images_only(folder: Path) -> None:
    with pytest.raises(RequestError, match="photographs take resized crops"):
        loader(open_data(str(folder)).train, pad=4)


def test_a_group_with_a_scale_of_its_own_is_not_padded(photos: Tensor) -> None:
    images = RecordedImages(photos)
    groups = {"large": ViewGroup(count=1), "small": ViewGroup(count=1, size=16, scale=(0.1, 0.2))}
    next(ViewLoader(images, ViewSpec(Augment(pad=4), groups, 96), Batching(64, 0), CPU).epoch(0))
    boxes = {name: group.boxes for name, group in images.requests[0].groups.items()}
    assert (boxes["large"][:, 2:] == 96).all()
    area = boxes["small"][:, 2:].prod(1) / 96**2
    assert 0.09 < area.min() < area.max() < 0.21


@pytest.mark.parametrize(
    ("size", "expected"), [(1.0, [20, 20, 28, 28]), (0.5, [16] * 4), (24.0, [24] * 4)]
)  # only groups of size 1 grow
def test_views_grow_with_the_run(photos: Tensor, size: float, expected: list[int]) -> None:
    groups = {"large": ViewGroup(count=1, size=size), "copy": ViewGroup(count=1, copy_of="large")}
    side: Callable[[int], int] = lambda step: 20 if step < 2 else 28  # noqa: E731
    views_of = ViewLoader(ArrayImages(photos), ViewSpec(Augment(), groups, 32), Batching(16, 0), CPU, side)
    batches = list(views_of.epoch(0))
    assert [views.pixels["large"].shape[-1] for views in batches] == expected
    assert [views.pixels["copy"].shape[-1] for views in batches] == [20, 20, 28, 28]
    assert views_of.sides(3) == {"large": expected[3], "copy": 28}
