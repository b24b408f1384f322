"""Several data sets at once: each image as in its own set, classes and names apart, weights in every epoch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import effssl
from effssl.augment.options import Augment, ViewGroup
from effssl.cli import main
from effssl.data import Images, open_data
from effssl.data.images import Reading, crop_batches, whole_boxes
from effssl.data.joined import JoinedImages, images_per_epoch
from effssl.data.listing import with_listed
from effssl.data.loader import Batching, ViewLoader, ViewSpec
from effssl.runtime.errors import RequestError

QUICK = {"batch_size": 4, "image_size": 32, "workers": 1, "quiet": True, "encoder": "tiny"}


@pytest.fixture
def places(tmp_path: Path, photos: Tensor) -> tuple[str, str]:
    """A folder of eight photographs and four test images, and a table of six, both with the classes sky and roof."""
    for i in range(12):
        folder = tmp_path / "zoo" / ("train" if i < 8 else "test") / ("sky", "roof")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photos[5 * i].permute(1, 2, 0).numpy()).resize((96, 80 + i)).save(folder / f"{i}.png")
    rows = ["path,label"]
    for i in range(6):
        Image.fromarray(photos[5 * i + 1].permute(1, 2, 0).numpy()).save(tmp_path / f"{i}.jpg")
        rows.append(f"{i}.jpg,{('roof', 'sky')[i % 2]}")
    (tmp_path / "town.csv").write_text("\n".join(rows))
    return str(tmp_path / "zoo"), str(tmp_path / "town.csv")


def crops(images: Images, workers: int = 0) -> Tensor:
    batches = crop_batches(images, whole_boxes(images.sizes), 24, 5, Reading(workers=workers))
    return torch.cat([pixels for pixels, _ in batches])


def test_every_image_is_what_it_is_in_its_set(places: tuple[str, str]) -> None:
    first, second = (open_data(spec) for spec in places)
    both = open_data(" + ".join(places))
    assert both.name == "zoo+town"
    assert both.train.classes == ["zoo/roof", "zoo/sky", "town/roof", "town/sky"]
    assert both.train.labels.tolist() == [*first.train.labels.tolist(), *(second.train.labels + 2).tolist()]
    assert both.train.paths == [*first.train.paths, *second.train.paths]
    assert both.test.labels.tolist() == first.test.labels.tolist()
    assert torch.equal(both.train.sizes, torch.cat([first.train.sizes, second.train.sizes]))
    mixed = torch.tensor([13, 0, 8, 7, 1, 9, 12])
    chosen = both.train.select(mixed)
    expected = torch.cat([crops(first.train), crops(second.train)])
    assert torch.equal(crops(both.train, workers=2), expected)
    assert torch.equal(crops(chosen, workers=1), expected[mixed])
    assert chosen.image(2).tobytes() == second.train.image(0).tobytes()
    assert both.train.fingerprint() == open_data(" + ".join(places)).train.fingerprint()
    assert both.train.fingerprint() != open_data(" + ".join(reversed(places))).train.fingerprint()


def test_unreadable_images_are_left_out_of_the_right_set(places: tuple[str, str]) -> None:
    both = open_data(" + ".join(places)).train
    expected = crops(both)
    for row in (2, 9):
        content = both.paths[row].read_bytes()
        both.paths[row].write_bytes(content[: len(content) // 2])
    rest = [row for row in range(14) if row not in (2, 9)]
    assert torch.equal(crops(both), expected[rest])


def test_a_weight_is_how_often_an_epoch_has_an_image(places: tuple[str, str]) -> None:
    images = open_data(f"{places[0]} + 2.5*{places[1]}").train
    assert (len(images), images_per_epoch(images)) == (14, 23)
    spec = ViewSpec(Augment(), {"large": ViewGroup(count=2)}, 16)
    loader = ViewLoader(images, spec, Batching(23, 0, workers=0), torch.device("cpu"))
    seen = [torch.bincount(next(iter(loader.epoch(epoch))).index, minlength=14) for epoch in range(4)]
    for counts in seen:
        assert counts[:8].tolist() == [1] * 8
        assert sorted(counts[8:].tolist()) == [2, 2, 2, 3, 3, 3]
    assert len({tuple(counts.tolist()) for counts in seen}) > 1  # not always the same ones
    plain = open_data(" + ".join(places)).train
    order = ViewLoader(plain, spec, Batching(14, 0, workers=0), torch.device("cpu")).order(3)
    assert sorted(order.tolist()) == list(range(14))


def test_sets_of_one_name_and_sets_without_labels(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for where in ("a", "b"):
        (tmp_path / where).mkdir()
        arrays = {"images": np.full((3, 9, 9), 7, np.uint8), "labels": np.arange(3)}
        np.savez(tmp_path / where / "set.npz", **arrays)
    np.save(tmp_path / "bare.npy", np.zeros((2, 9, 9), np.uint8))
    named = open_data(f"{tmp_path}/a/set.npz + {tmp_path}/b/set.npz").train
    assert named.in_memory
    assert named.paths is None
    assert named.classes == ["a/set.npz/0", "a/set.npz/1", "a/set.npz/2", *(f"b/set.npz/{i}" for i in range(3))]
    assert open_data(f"{tmp_path}/a/set.npz + {tmp_path}/bare.npy").train.labels is None
    assert "bare has no labels" in capsys.readouterr().err
    assert not open_data(f"digits + {tmp_path}/bare.npy").train.in_memory  # 8 and 9 pixels


def test_sets_of_other_pixels_are_not_joined(tmp_path: Path) -> None:
    np.savez(tmp_path / "bands.npz", images=np.zeros((4, 9, 9, 5), np.uint16))
    with pytest.raises(RequestError, match=r"digits has RGB of 8 bits, and bands has 5 channels of uint16; give sets"):
        open_data(f"digits + {tmp_path}/bands.npz")
    np.savez(tmp_path / "more.npz", images=np.full((4, 9, 9, 5), 7, np.uint16))
    both = open_data(f"{tmp_path}/bands.npz + {tmp_path}/more.npz").train
    assert both.pixel_format.channels == 5
    assert both.array(6).max() == 7


def test_a_name_with_a_plus_is_one_set(tmp_path: Path) -> None:
    np.save(tmp_path / "a + b.npy", np.zeros((2, 9, 9), np.uint8))
    assert len(open_data(str(tmp_path / "a + b.npy")).train) == 2


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (["digits", "nothing"], "no data set or folder named 'nothing'"),
        (["digits", "digits"], "digits is given twice"),
        (["digits", "0*digits"], r"0\*digits: the weight of a data set is above 0"),
        (["digits", ""], "data= is needed"),
    ],
)
def test_sets_that_cannot_be_joined(data: list[str], says: str, in_tmp: Path) -> None:
    with pytest.raises(RequestError, match=says) as error:
        effssl.pretrain(data)
    assert "\n" not in str(error.value)


def test_several_sets_train_resume_evaluate_and_embed(places: tuple[str, str], in_tmp: Path) -> None:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in QUICK.items() if name != "quiet"]
    main(["pretrain", "--data", places[0], "--objective", "simsiam", "--epochs=1", *flags, "--data", f"2*{places[1]}"])
    run = effssl.Run("runs/zoo-town-simsiam-0")
    assert run.config.data == f"{places[0]} + 2*{places[1]}"
    assert isinstance(run.data().train, JoinedImages)
    longer = effssl.pretrain(run.config.data, "simsiam", epochs=2, out=run.folder, resume="auto", **QUICK)
    assert longer.metrics()[-1]["step"] == 2 * (8 + 2 * 6) // 4
    assert 0 <= longer.knn(k=2).value <= 100
    names = effssl.embed(run.folder, run.config.data, "features.npz", workers=0).names
    assert [Path(name).name for name in names[7:10]] == ["6.png", "0.jpg", "1.jpg"]


def test_runs_on_several_folders_keep_the_images_they_began_with(
    places: tuple[str, str], photos: Tensor, in_tmp: Path, capsys: pytest.CaptureFixture
) -> None:
    both = " + ".join(places)
    run = effssl.pretrain(both, "simsiam", epochs=1, subset=10, out="run", **QUICK)
    before = run.data().train
    Image.fromarray(photos[3].permute(1, 2, 0).numpy()).save(Path(places[0], "train", "sky", "new.png"))
    capsys.readouterr()
    longer = effssl.pretrain(both, "simsiam", epochs=2, subset=10, out="run", resume="auto", **QUICK | {"quiet": False})
    assert longer.finished
    assert "new images are not used" in capsys.readouterr().err
    listed = with_listed(open_data(both).with_subset(10), run.folder).train
    assert [str(path) for path in listed.paths] == [str(path) for path in before.paths]
    assert torch.equal(listed.labels, before.labels)
    assert torch.equal(crops(listed), crops(before))


def test_a_subset_may_leave_a_folder_out(places: tuple[str, str], photos: Tensor, in_tmp: Path) -> None:
    Path("one").mkdir()
    Image.fromarray(photos[9].permute(1, 2, 0).numpy()).save("one/a.png")
    both = f"one + {places[0]}"
    run = effssl.pretrain(both, "simsiam", epochs=1, subset=4, out="run", **QUICK)
    data = open_data(run.config.data).with_subset(4)
    assert not (data.train.part_of == 0).any()
    assert with_listed(data, run.folder).train.paths == data.train.paths
    assert effssl.pretrain(both, "simsiam", epochs=2, subset=4, out="run", resume="auto", **QUICK).finished


def test_replaced_images_of_several_folders_are_noticed(places: tuple[str, str], in_tmp: Path) -> None:
    town = Path(places[1])
    for i in range(6):
        Image.open(town.with_name(f"{i}.jpg")).save(town.with_name(f"{i}.bmp"))
    town.write_text(town.read_text().replace(".jpg", ".bmp"))
    both = " + ".join(places)
    effssl.pretrain(both, "simsiam", epochs=1, out="run", **QUICK)
    other = town.with_name("3.bmp")
    Image.open(other).rotate(180).save(other)  # of the same size and length
    with pytest.raises(RequestError, match=r"1 of 6 images have other content .*3\.bmp"):
        effssl.pretrain(both, "simsiam", epochs=2, out="run", resume="auto", **QUICK)
