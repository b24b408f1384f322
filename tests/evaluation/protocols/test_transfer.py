"""Transfer: against scikit-learn by hand, the splits of the eleven sets, and reusing C."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from sklearn.linear_model import LogisticRegression

import effssl
from effssl.commands.evaluate import print_score
from effssl.data import Data
from effssl.data.transfer import SETS, fifth
from effssl.evaluation.protocols.transfer import (
    LinearClassifier,
    TransferOptions,
    c_grid,
    choose_c,
    features_of,
    percent_of,
)
from effssl.features.extract import Features, extract
from effssl.network.loaded import LoadedEncoder

PHOTO = Image.fromarray(load_sample_image("china.jpg"))


def save_tile(path: Path, number: int, size: tuple[int, int] = (60, 50)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    x, y = 7 * number % 500, 5 * number % 300
    PHOTO.crop((x, y, x + size[0], y + size[1])).save(path)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fit_and_scores_are_scikit_learns(features: tuple[Features, Features]) -> None:
    (x, y), (tx, ty) = ((part.h.numpy(), part.labels.numpy()) for part in features)
    mine = LinearClassifier(100).fit(x, y, 10.0).scores(tx)
    theirs = LogisticRegression(C=10.0, max_iter=100).fit(x, y)
    assert percent_of(mine, ty, "accuracy") == pytest.approx(100 * theirs.score(tx, ty), abs=1e-6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_c_is_the_best_on_validation_and_the_value_comes_from_a_refit(encoder: LoadedEncoder, digits: Data) -> None:
    seen = encoder.with_transform(1.0, "bicubic")
    train, test = (features_of(seen, images, "digits") for images in (digits.train, digits.test))
    x, y, tx, ty = train.x, train.y, test.x, test.y
    rows, held = fifth(len(x), 0)
    assert len(held) == len(x) // 5
    assert not set(rows) & set(held)
    options = TransferOptions(grid=4)
    c = choose_c(train.among(rows), train.among(held), "accuracy", options, "digits")
    model, on_val = LogisticRegression(warm_start=True), {}
    for value in np.logspace(-5, 6, 4).tolist():
        on_val[value] = model.set_params(C=value).fit(x[rows], y[rows]).score(x[held], y[held])
    assert c == max(on_val, key=on_val.get)
    score = effssl.evaluate("transfer", encoder, digits, grid=4)
    assert score.constants["C"] == c
    assert score.value == pytest.approx(100 * LogisticRegression(C=c, max_iter=100).fit(x, y).score(tx, ty), abs=1e-6)
    assert "numpy seed 0" in score.constants["chosen_on"]


def test_c_of_another_result_is_reused(encoder: LoadedEncoder, digits: Data, tmp_path: Path) -> None:
    first = effssl.evaluate("transfer", encoder, digits, grid=2)
    changed = dataclasses.replace(first, constants=first.constants | {"C": 0.5})
    (tmp_path / "base.json").write_text(json.dumps(changed.record()))
    score = effssl.evaluate("transfer", encoder, digits, reuse=str(tmp_path / "base.json"))
    assert score.constants["C"] == 0.5
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(effssl.RequestError, match="not a transfer result"):
        effssl.evaluate("transfer", encoder, digits, reuse=str(tmp_path / "bad.json"))
    other = dataclasses.replace(digits, name="other")
    with pytest.raises(effssl.RequestError, match="holds no C for other"):
        effssl.evaluate("transfer", encoder, other, reuse=str(tmp_path / "base.json"))


def test_metrics_by_hand() -> None:
    scores = np.eye(3)[[0, 0, 0, 1, 2, 2]]
    y = np.array([0, 0, 1, 1, 2, 0])
    assert percent_of(scores, y, "accuracy") == pytest.approx(100 * 4 / 6)
    assert percent_of(scores, y, "mean per class") == pytest.approx(100 * (2 / 3 + 1 / 2 + 1) / 3)
    # ranked: yes, no, yes → precision 1 up to recall ½, 2/3 up to 1; eleven points: 6 of them at 1, 5 at 2/3
    ranked, present = np.array([[3.0], [2.0], [1.0]]), np.array([[1], [0], [1]])
    assert percent_of(ranked, present, "11-point mAP") == pytest.approx(100 * (6 + 5 * 2 / 3) / 11)


# ---------------------------------------------------------------------------------------------------------------
# The sets, in their own layouts


def test_caltech_split_by_its_rule(tmp_path: Path) -> None:
    root = tmp_path / "caltech101" / "101_ObjectCategories"
    for label, (name, count) in enumerate((("BACKGROUND_Google", 50), ("ant", 31), ("crab", 40))):
        for i in range(count):
            save_tile(root / name / f"image_{i:04}.jpg", 100 * label + i, (70 + i, 66))
    made = SETS["caltech101"](tmp_path, False, 0)
    assert made.fit.classes == ["BACKGROUND_Google", "ant", "crab"]
    counts = made.fit.labels.bincount()
    assert counts.max() <= 30
    assert counts.min() >= 12  # 30 draws with replacement, deduplicated
    assert len(made.fit) + len(made.test) == 121
    assert not {str(p) for p in made.fit.paths} & {str(p) for p in made.test.paths}
    assert made.metric == "mean per class"
    assert "background class kept, seed 0" in made.split
    again = SETS["caltech101"](tmp_path, False, 0)
    assert again.fit.paths == made.fit.paths
    (root / "ant" / "image_0000.jpg").write_bytes(b"no image")
    with pytest.raises(effssl.RequestError, match=r"Caltech101: .*ant/image_0000\.jpg cannot be read$"):
        SETS["caltech101"](tmp_path, False, 0)


def test_sun397_by_the_authors_lists_or_by_seed(tmp_path: Path) -> None:
    root = tmp_path / "SUN397"
    names = [f"/{c[0]}/{c}/sun_{i}.jpg" for c in ("abbey", "bar") for i in range(104)]
    for i, name in enumerate(names):
        save_tile(root / name[1:], i, (70, 66))
    (root / "ClassName.txt").write_text("/a/abbey\n/b/bar\n")
    made = SETS["sun397"](tmp_path, False, 0)
    assert [made.fit.labels.bincount().tolist(), made.test.labels.bincount().tolist()] == [[50, 50], [50, 50]]
    assert "seed 0" in made.split
    for name in names[102:104]:  # no list names them
        (root / name[1:]).write_bytes(b"no image")
    with pytest.raises(effssl.RequestError, match=r"SUN397: .*sun_102\.jpg cannot be read, nor can 1 more"):
        SETS["sun397"](tmp_path, False, 0)
    (root / "Training_01.txt").write_text("\n".join(names[:3]))
    (root / "Testing_01.txt").write_text("\n".join(names[110:112]))
    listed = SETS["sun397"](tmp_path, False, 0)
    assert [path.name for path in listed.fit.paths] == ["sun_0.jpg", "sun_1.jpg", "sun_2.jpg"]
    assert listed.test.labels.tolist() == [1, 1]
    assert listed.split == "the authors' 01"
    (root / "Testing_01.txt").write_text("/a/abbey/gone.jpg")
    with pytest.raises(effssl.RequestError, match=r"Testing_01\.txt lists 1 images that are missing.*gone\.jpg"):
        SETS["sun397"](tmp_path, False, 0)


def write_voc(root: Path, year: int, objects: dict[str, list[tuple[str, int]]], lists: dict[str, str]) -> None:
    """A VOC year: per image its objects as (class, difficult), and image lists."""
    voc = root / "VOCdevkit" / f"VOC{year}"
    (voc / "ImageSets" / "Main").mkdir(parents=True)
    (voc / "Annotations").mkdir()
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
    for name, found in objects.items():
        save_tile(voc / "JPEGImages" / f"{name}.jpg", 13 * int(name), (80, 70))
        parts = [f"<object><name>{n}</name><difficult>{d}</difficult>{box}</object>" for n, d in found]
        (voc / "Annotations" / f"{name}.xml").write_text(f"<annotation>{''.join(parts)}</annotation>")
    for part, rows in lists.items():
        (voc / "ImageSets" / "Main" / f"{part}.txt").write_text("\n".join(rows.split()))


def test_voc2007_alone_and_only_classes_that_are_learned_and_shown(
    tmp_path: Path, encoder: LoadedEncoder, capsys: pytest.CaptureFixture
) -> None:
    """The bird is in test alone and the cow in train alone: cat and dog count. 2012 is another set."""
    kinds = {str(i): [(("cat", "dog")[i % 2], 0)] for i in range(12)}
    kinds["0"], kinds["10"] = [("cow", 0), ("cat", 0)], [("bird", 0), ("cat", 0)]
    write_voc(tmp_path, 2012, {"90": [("dog", 0)]}, {"train": "90", "val": "90", "test": "90"})
    with pytest.raises(effssl.RequestError, match="VOC2007 is not ready"):
        SETS["voc2007"](tmp_path, False, 0)
    write_voc(tmp_path, 2007, kinds, {"train": "0 1 2 3", "val": "4 5 6 7", "test": "8 9 10 11"})
    score = effssl.evaluate("transfer", encoder, str(tmp_path), sets="voc2007", grid=2)
    result = score.constants["sets"]["voc2007"]
    assert (result["train_images"], result["validation_images"], result["test_images"]) == (8, 4, 4)
    assert result["classes_counted"] == 2
    assert "2 of 20 classes count" in capsys.readouterr().err
    by_hand = np.array([[2.0, np.nan, 1.0], [1.0, np.nan, 2.0]])
    assert percent_of(by_hand, np.array([[1, 1, 0], [0, 1, 0]]), "11-point mAP") == pytest.approx(100)


def test_voc_labels_are_those_of_objects_that_are_not_difficult(tmp_path: Path, encoder: LoadedEncoder) -> None:
    objects = {"1": [("dog", 0), ("cat", 1)], "2": [("dog", 1)], "3": [("cat", 0)]}
    write_voc(tmp_path, 2007, objects, {"train": "1 2", "val": "3", "test": "2 3"})
    made = SETS["voc2007"](tmp_path, False, 0)
    part = features_of(encoder, made.fit, "voc")
    y = part.y
    assert part.x.shape == (2, encoder.dim)
    assert y.sum(1).tolist() == [1, 0]
    assert y[0].nonzero()[0].tolist() == [11]  # the dog
    assert made.metric == "11-point mAP"


def test_torchvision_sets_and_the_mean_over_sets(
    tmp_path: Path, encoder: LoadedEncoder, capsys: pytest.CaptureFixture
) -> None:
    """Pets and DTD in the layouts their authors publish."""
    pets, lines = tmp_path / "oxford-iiit-pet", []
    for i in range(24):
        kind = ("Abyssinian", "beagle")[i % 2]
        save_tile(pets / "images" / f"{kind}_{i}.jpg", i if i % 2 else i + 300)
        lines.append(f"{kind}_{i} {i % 2 + 1} 1 1")
    (pets / "annotations" / "trimaps").mkdir(parents=True)
    (pets / "annotations" / "trainval.txt").write_text("\n".join(lines[:16]))
    (pets / "annotations" / "test.txt").write_text("\n".join(lines[16:]))
    dtd = tmp_path / "dtd" / "dtd"
    (dtd / "labels").mkdir(parents=True)
    for part, rows in (("train", range(8)), ("val", range(8, 14)), ("test", range(14, 20))):
        names = [f"{('banded', 'dotted')[i % 2]}/{i}.jpg" for i in rows]
        for i, name in zip(rows, names, strict=True):
            save_tile(dtd / "images" / name, 11 * i)
        (dtd / "labels" / f"{part}1.txt").write_text("\n".join(names))
    (dtd / "imdb").mkdir()
    score = effssl.evaluate("transfer", encoder, str(tmp_path), sets="pets,dtd", grid=3, imagenet=50.0)
    sets = score.constants["sets"]
    assert sets["pets"]["train_images"] == 16
    assert sets["dtd"]["train_images"] == 14  # train and validation
    assert sets["dtd"]["chosen_on"] == "its own validation images"
    assert sets["dtd"]["validation_images"] == 6
    assert len(sets["dtd"]["validation_fingerprint"]) == 16
    assert [sets["pets"]["metric"], sets["dtd"]["metric"]] == ["mean per class", "accuracy"]
    assert score.value == pytest.approx((score.also["pets"] + score.also["dtd"]) / 2)
    assert score.also["average_with_imagenet"] == pytest.approx((2 * score.value + 50) / 3)
    assert "cars" in score.constants["not_measured"]
    print_score(score, "transfer")
    lines = capsys.readouterr().out.splitlines()
    assert any("pets" in line and "mean per class" in line and "torchvision's" in line for line in lines)
    assert any("dtd" in line and f"{sets['dtd']['C']:.3g}" in line and "1 of 10" in line for line in lines)
    (tmp_path / "r.json").write_text(json.dumps(score.record()))
    again = effssl.evaluate("transfer", encoder, str(tmp_path), sets="dtd", reuse=str(tmp_path / "r.json"))
    assert again.constants["sets"]["dtd"]["C"] == sets["dtd"]["C"]
    assert again.value == pytest.approx(score.also["dtd"])


def write_pets(root: Path) -> Path:
    """Six images of one pet, the same ones in train and test."""
    pets, lines = root / "oxford-iiit-pet", []
    for i in range(6):
        save_tile(pets / "images" / f"Beagle_{i}.jpg", i, (90 + i, 80))
        lines.append(f"Beagle_{i} 1 1 1")
    (pets / "annotations" / "trimaps").mkdir(parents=True)
    for part in ("trainval", "test"):
        (pets / "annotations" / f"{part}.txt").write_text("\n".join(lines))
    return pets


@pytest.mark.parametrize("broken", ["truncated", "missing"])
def test_a_bad_image_of_a_published_set_is_one_line(tmp_path: Path, encoder: LoadedEncoder, broken: str) -> None:
    pets = write_pets(tmp_path)
    bad = pets / "images" / "Beagle_3.jpg"
    bad.unlink() if broken == "missing" else bad.write_bytes(bad.read_bytes()[:-200])
    with pytest.raises(effssl.RequestError, match=r"pets train: .*Beagle_3\.jpg cannot be read") as error:
        effssl.evaluate("transfer", encoder, str(tmp_path), sets="pets")
    assert "\n" not in str(error.value)


def test_a_bad_image_of_one_set_costs_that_set_alone(
    tmp_path: Path, encoder: LoadedEncoder, capsys: pytest.CaptureFixture
) -> None:
    kinds = {str(i): [(("cat", "dog")[i % 2], 0)] for i in range(12)}
    write_voc(tmp_path, 2007, kinds, {"train": "0 1 2 3", "val": "4 5 6 7", "test": "8 9 10 11"})
    pets = write_pets(tmp_path)
    bad = pets / "images" / "Beagle_3.jpg"
    bad.write_bytes(bad.read_bytes()[:-200])
    for sets in ("pets,voc2007", "voc2007,pets"):
        score = effssl.evaluate("transfer", encoder, str(tmp_path), sets=sets, grid=2, max_iter=5)
        assert list(score.constants["sets"]) == ["voc2007"]
        assert "pets" in score.constants["not_measured"]
        assert f"left out: pets train: {bad} cannot be read" in capsys.readouterr().err


def test_a_fingerprint_does_not_know_the_size(tmp_path: Path, encoder: LoadedEncoder) -> None:
    write_pets(tmp_path)
    fit = SETS["pets"](tmp_path, False, 0).fit
    larger = effssl.load("small", weights="random", image_size=48)
    before = features_of(encoder, fit, "pets").fingerprint
    assert features_of(larger, fit, "pets").fingerprint == before
    save_tile(tmp_path / "oxford-iiit-pet/images/Beagle_3.jpg", 99, (93, 80))
    assert features_of(encoder, fit, "pets").fingerprint != before


def test_small_folders_are_refused_with_a_line(encoder: LoadedEncoder, digits: Data) -> None:
    def few(labels: list[int]) -> Data:
        rows = torch.tensor([int((digits.train.labels == label).nonzero()[i]) for i, label in enumerate(labels)])
        return dataclasses.replace(digits, train=digits.train.select(rows))

    with pytest.raises(effssl.RequestError, match="4 training images: a fifth of them is none"):
        effssl.evaluate("transfer", encoder, few([0, 1, 0, 1]))
    held = fifth(5, 0)[1][0]
    with pytest.raises(effssl.RequestError, match="fewer than two classes"):
        effssl.evaluate("transfer", encoder, few([1 if i == held else 0 for i in range(5)]))


def test_cifar_lies_below_the_folder_or_is_not_fetched(
    tmp_path: Path, encoder: LoadedEncoder, digits: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EFFSSL_DATA", str(tmp_path / "cache"))
    with pytest.raises(effssl.RequestError, match=r"cifar10 is not ready under .*download=True"):
        SETS["cifar10"](tmp_path, False, 0)
    (tmp_path / "cifar-10-batches-py").mkdir()  # torchvision's place, but empty
    with pytest.raises(effssl.RequestError, match=r"cifar10 under .* is damaged"):
        SETS["cifar10"](tmp_path, False, 0)
    arrays = {"classes": np.array(digits.train.classes)}
    for part, images in (("train", digits.train), ("test", digits.test)):
        arrays |= {
            f"{part}_images": images.pixels[:40].permute(0, 2, 3, 1).numpy(),
            f"{part}_labels": images.labels[:40],
        }
    np.savez(tmp_path / "cifar10.npz", **arrays)
    made = SETS["cifar10"](tmp_path, False, 0)
    assert torch.equal(made.test.pixels, digits.test.pixels[:40])


def test_c_from_all_results_of_a_run(encoder: LoadedEncoder, digits: Data, tmp_path: Path) -> None:
    """results.json holds several scores under names of their own."""
    first = effssl.evaluate("transfer", encoder, digits, grid=2, max_iter=5)
    knn = effssl.evaluate("knn", encoder, digits).record()
    one, other = ({**first.record(), "constants": first.constants | {"C": c}} for c in (0.5, 2.0))
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"knn": knn, "transfer@digits grid=2": one}))
    assert effssl.evaluate("transfer", encoder, digits, max_iter=5, reuse=str(path)).constants["C"] == 0.5
    path.write_text(json.dumps({"transfer": one, "transfer grid=2": other}))
    with pytest.raises(effssl.RequestError, match="2 different C for digits"):
        effssl.evaluate("transfer", encoder, digits, reuse=str(path))
    path.write_text(json.dumps({"knn": knn}))
    with pytest.raises(effssl.RequestError, match="not a transfer result"):
        effssl.evaluate("transfer", encoder, digits, reuse=str(path))


def test_the_grid_is_the_protocols() -> None:
    grid = c_grid(TransferOptions())
    assert len(grid) == 45
    assert grid[0] == pytest.approx(1e-5)
    assert grid[-1] == pytest.approx(1e6)  # C = 1/wd, wd from 1e-6 to 1e5
    assert np.allclose(np.diff(np.log10(grid)), 11 / 44)


def test_missing_and_unknown_sets_get_one_line(tmp_path: Path, encoder: LoadedEncoder) -> None:
    for name in ("flowers", "aircraft", "dtd", "cars", "food", "pets", "caltech101", "sun397", "voc2007"):
        with pytest.raises(effssl.RequestError) as error:
            effssl.evaluate("transfer", encoder, str(tmp_path), sets=name)
        assert "\n" not in str(error.value)
        assert str(tmp_path) in str(error.value)
    with pytest.raises(effssl.RequestError, match="did you mean flowers"):
        effssl.evaluate("transfer", encoder, str(tmp_path), sets="flower")


def test_squares_equal_the_folder_path(tmp_path: Path, encoder: LoadedEncoder) -> None:
    """A set read through torchvision and the same files read as a folder give the same features."""
    pets = write_pets(tmp_path)
    seen = encoder.with_transform(1.0, "bicubic")
    streamed = features_of(seen, SETS["pets"](tmp_path, False, 0).fit, "pets").x
    folder = effssl.open_data(str(pets / "images"), "none").train
    plain = extract(seen, folder).h.numpy()
    assert np.abs(streamed - plain).max() < 0.02 * np.abs(plain).max()
    assert torch.is_tensor(folder.sizes)


def test_cars_as_class_folders(encoder: LoadedEncoder, tmp_path: Path) -> None:
    with pytest.raises(effssl.RequestError, match="authors' address is gone"):
        effssl.evaluate("transfer", encoder, str(tmp_path), sets="cars")
    photo = Image.fromarray(load_sample_image("flower.jpg"))
    for part, count in (("train", 6), ("test", 2)):
        for k, name in enumerate(("Audi TT", "Fiat 500")):
            folder = tmp_path / "stanford_cars" / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                photo.crop((200 * k + 9 * i, 9 * i, 200 * k + 9 * i + 120, 9 * i + 90)).save(folder / f"{i}.jpg")
    score = effssl.evaluate("transfer", encoder, str(tmp_path), sets="cars", grid=3)
    assert score.constants["sets"]["cars"]["split"] == "train/ and test/ of the folder"
    bad = tmp_path / "stanford_cars/test/Audi TT/1.jpg"
    for content in (bad.read_bytes()[:-300], b"no image"):  # its header can be read; nothing can
        bad.write_bytes(content)
        with pytest.raises(effssl.RequestError, match=r"^cars.*: .*Audi TT/1\.jpg cannot be read$"):
            effssl.evaluate("transfer", encoder, str(tmp_path), sets="cars", grid=3)
