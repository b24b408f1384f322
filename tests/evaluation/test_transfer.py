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
from effssl.data import Data
from effssl.data.transfer import SETS, fifth
from effssl.evaluation import Features
from effssl.evaluation.options import Transfer
from effssl.evaluation.transfer import Classifier, choose_c, features_of, measure
from effssl.network.loaded import LoadedEncoder

PHOTO = Image.fromarray(load_sample_image("china.jpg"))


def save_tile(path: Path, number: int, size: tuple[int, int] = (60, 50)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    x, y = 7 * number % 500, 5 * number % 300
    PHOTO.crop((x, y, x + size[0], y + size[1])).save(path)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fit_and_scores_are_scikit_learns(features: tuple[Features, Features]) -> None:
    (x, y), (tx, ty) = ((part.h.numpy(), part.labels.numpy()) for part in features)
    mine = Classifier(100).fit(x, y, 10.0).scores(tx)
    theirs = LogisticRegression(C=10.0, max_iter=100).fit(x, y)
    assert measure(mine, ty, "accuracy") == pytest.approx(100 * theirs.score(tx, ty), abs=1e-6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_c_is_the_best_on_validation_and_the_value_comes_from_a_refit(encoder: LoadedEncoder, digits: Data) -> None:
    seen = encoder.looking(1.0, "bicubic")
    (x, y, _), (tx, ty, _) = (features_of(seen, images, "digits") for images in (digits.train, digits.test))
    rows, held = fifth(len(x), 0)
    assert len(held) == len(x) // 5
    assert not set(rows) & set(held)
    options = Transfer(grid=4)
    c = choose_c(x[rows], y[rows], x[held], y[held], "accuracy", options, "digits")
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
    assert measure(scores, y, "accuracy") == pytest.approx(100 * 4 / 6)
    assert measure(scores, y, "mean per class") == pytest.approx(100 * (2 / 3 + 1 / 2 + 1) / 3)
    # ranked: yes, no, yes → precision 1 up to recall ½, 2/3 up to 1; eleven points: 6 of them at 1, 5 at 2/3
    ranked, present = np.array([[3.0], [2.0], [1.0]]), np.array([[1], [0], [1]])
    assert measure(ranked, present, "11-point mAP") == pytest.approx(100 * (6 + 5 * 2 / 3) / 11)


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


def test_sun397_by_the_authors_lists_or_by_seed(tmp_path: Path) -> None:
    root = tmp_path / "SUN397"
    names = [f"/{c[0]}/{c}/sun_{i}.jpg" for c in ("abbey", "bar") for i in range(104)]
    for i, name in enumerate(names):
        save_tile(root / name[1:], i, (70, 66))
    (root / "ClassName.txt").write_text("/a/abbey\n/b/bar\n")
    made = SETS["sun397"](tmp_path, False, 0)
    assert [made.fit.labels.bincount().tolist(), made.test.labels.bincount().tolist()] == [[50, 50], [50, 50]]
    assert "seed 0" in made.split
    (root / "Training_01.txt").write_text("\n".join(names[:3]))
    (root / "Testing_01.txt").write_text("\n".join(names[110:112]))
    listed = SETS["sun397"](tmp_path, False, 0)
    assert [path.name for path in listed.fit.paths] == ["sun_0.jpg", "sun_1.jpg", "sun_2.jpg"]
    assert listed.test.labels.tolist() == [1, 1]
    assert listed.split == "the authors' 01"


def test_voc_labels_are_those_of_objects_that_are_not_difficult(tmp_path: Path, encoder: LoadedEncoder) -> None:
    voc = tmp_path / "VOCdevkit" / "VOC2007"
    objects = {"1": [("dog", 0), ("cat", 1)], "2": [("dog", 1)], "3": [("cat", 0)]}
    for name, found in objects.items():
        save_tile(voc / "JPEGImages" / f"{name}.jpg", int(name), (80, 70))
        box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
        parts = [f"<object><name>{n}</name><difficult>{d}</difficult>{box}</object>" for n, d in found]
        (voc / "Annotations").mkdir(exist_ok=True)
        (voc / "Annotations" / f"{name}.xml").write_text(f"<annotation>{''.join(parts)}</annotation>")
    (voc / "ImageSets" / "Main").mkdir(parents=True)
    for part, rows in (("train", "1 2"), ("val", "3"), ("test", "2 3")):
        (voc / "ImageSets" / "Main" / f"{part}.txt").write_text("\n".join(rows.split()))
    made = SETS["voc2007"](tmp_path, False, 0)
    x, y, _ = features_of(encoder, made.fit, "voc")
    assert x.shape == (2, encoder.dim)
    assert y.sum(1).tolist() == [1, 0]
    assert y[0].nonzero()[0].tolist() == [11]  # the dog
    assert made.metric == "11-point mAP"


def test_torchvision_sets_and_the_mean_over_sets(tmp_path: Path, encoder: LoadedEncoder) -> None:
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
    assert [sets["pets"]["metric"], sets["dtd"]["metric"]] == ["mean per class", "accuracy"]
    assert score.value == pytest.approx((score.also["pets"] + score.also["dtd"]) / 2)
    assert score.also["average_with_imagenet"] == pytest.approx((2 * score.value + 50) / 3)
    assert "cars" in score.constants["not_measured"]
    (tmp_path / "r.json").write_text(json.dumps(score.record()))
    again = effssl.evaluate("transfer", encoder, str(tmp_path), sets="dtd", reuse=str(tmp_path / "r.json"))
    assert again.constants["sets"]["dtd"]["C"] == sets["dtd"]["C"]
    assert again.value == pytest.approx(score.also["dtd"])


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
    pets = tmp_path / "oxford-iiit-pet"
    lines = []
    for i in range(6):
        save_tile(pets / "images" / f"Beagle_{i}.jpg", i, (90 + i, 80))
        lines.append(f"Beagle_{i} 1 1 1")
    (pets / "annotations" / "trimaps").mkdir(parents=True)
    for part in ("trainval", "test"):
        (pets / "annotations" / f"{part}.txt").write_text("\n".join(lines))
    seen = encoder.looking(1.0, "bicubic")
    streamed, _, _ = features_of(seen, SETS["pets"](tmp_path, False, 0).fit, "pets")
    folder = effssl.open_data(str(pets / "images"), "none").train
    plain = effssl.evaluation.extract(seen, folder).h.numpy()
    assert np.abs(streamed - plain).max() < 0.02 * np.abs(plain).max()
    assert torch.is_tensor(folder.sizes)
