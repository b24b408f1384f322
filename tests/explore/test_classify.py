"""Few labels to predictions, on digits as PNG files: how good, how sure, which next, saved and loaded."""

from __future__ import annotations

import csv
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import effssl
from effssl.cli import main
from effssl.explore.classifier import stratified_folds, train_classifier
from effssl.explore.classify import Classification
from effssl.explore.labels import Names, read_labels
from effssl.features.classifier_files import load_classifier
from effssl.features.heads import LinearHead, NeighborHead

COUNT, LABELLED = 500, 120
HOW = ["--workers", "0", "--image-size", "8"]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder of digits and the true label of each, by its path in the folder."""
    root = tmp_path_factory.mktemp("digits")
    found = load_digits()
    truth = {}
    for i in range(COUNT):
        file = f"{'even' if i % 2 == 0 else 'odd'}/{i:03}.png"
        (root / file).parent.mkdir(exist_ok=True)
        Image.fromarray((found.images[i] * 15).astype(np.uint8)).save(root / file)
        truth[file] = f"digit {found.target[i]}"
    return root, truth


@pytest.fixture(scope="module")
def few(digits: tuple[Path, dict[str, str]]) -> dict[str, str]:
    return dict(random.Random(0).sample(list(digits[1].items()), LABELLED))


@pytest.fixture(scope="module")
def found(digits: tuple[Path, dict[str, str]], few: dict[str, str]) -> Classification:
    return effssl.classify("pixels", digits[0], few, workers=0, image_size=8)


def write_csv(path: Path, rows: dict[str, str], header: str = "file,label") -> str:
    path.write_text("\n".join([header, *(f"{file},{label}" for file, label in rows.items())]) + "\n")
    return str(path)


def read_csv(path: str) -> list[dict[str, str]]:
    with Path(path).open() as file:
        return list(csv.DictReader(file))


def test_predictions_are_as_good_and_as_sure_as_it_says(
    found: Classification, digits: tuple[Path, dict[str, str]], few: dict[str, str]
) -> None:
    truth = digits[1]
    assert [one.file for one in found.predictions] == sorted(truth.keys() - few)
    accuracy = 100 * np.mean([one.label == truth[one.file] for one in found.predictions])
    expected = found.classifier.expected
    assert accuracy > 80
    assert expected.chance < 20
    assert expected.low <= accuracy <= expected.high
    assert expected.accuracy <= max(expected.compared.values())  # the choice among many is paid for
    assert 100 * np.mean([one.probability for one in found.predictions]) == pytest.approx(accuracy, abs=6)
    assert found.probabilities.sum(1) == pytest.approx(np.ones(COUNT - LABELLED), abs=1e-5)


def test_images_to_label_next_are_uncertain_and_diverse(found: Classification) -> None:
    chosen = found.label_next
    assert [one.next for one in chosen] == list(range(1, 21))
    assert np.mean([one.probability for one in chosen]) < np.mean([one.probability for one in found.predictions]) - 0.2
    assert len({one.label for one in chosen}) > 4


def test_the_command_writes_predictions_and_a_classifier(
    digits: tuple[Path, dict[str, str]],
    few: dict[str, str],
    found: Classification,
    in_tmp: Path,
    capfd: pytest.CaptureFixture,
) -> None:
    labels = write_csv(in_tmp / "labels.csv", few | {found.predictions[0].file: ""})  # not labelled yet
    train = ["classify", "pixels", "--labels", labels, "--data", str(digits[0]), "--next", "5", *HOW]
    main([*train, "--out", "p.csv"])
    shown = capfd.readouterr()
    assert "Warning" not in shown.err
    assert f"{found.classifier.name}: the best of" in shown.out
    assert f"expected accuracy {found.classifier.expected.accuracy:.1f} %" in shown.out
    assert "5 images to label next" in shown.out
    rows = read_csv("p.csv")
    assert list(rows[0]) == ["file", "label", "probability", "next"]
    assert [(row["file"], row["label"]) for row in rows] == [(one.file, one.label) for one in found.predictions]
    assert sum(row["next"] != "" for row in rows) == 5
    with pytest.raises(SystemExit) as stop:
        main([*train, "--out", "p.csv"])
    assert stop.value.code == 2
    assert "p.csv exists" in capfd.readouterr().err

    # The saved classifier says the same of the same images elsewhere, and is an encoder for other commands.
    Path("other").mkdir()
    copied = [one.file for one in found.predictions[-3:]]
    for file in copied:
        shutil.copy(digits[0] / file, "other")
    main(["classify", "p.classifier.safetensors", "--data", "other", "--out", "o.csv", "--workers", "0"])
    told = {row["file"]: (row["label"], row["probability"]) for row in rows}
    assert [(row["label"], row["probability"]) for row in read_csv("o.csv")] == [told[file] for file in copied]
    assert effssl.load("p.classifier.safetensors").about.keys() == effssl.load("pixels", image_size=8).about.keys()


def test_features_are_computed_once(
    digits: tuple[Path, dict[str, str]], few: dict[str, str], found: Classification, in_tmp: Path
) -> None:
    features = effssl.embed("pixels", digits[0], "f.npz", workers=0, image_size=8)
    again = effssl.classify("pixels", labels=few, features="f.npz", image_size=8)
    assert again.predictions == found.predictions
    with pytest.raises(effssl.RequestError, match="another encoder"):
        effssl.classify("pixels", labels=few, features=features, image_size=16)
    again.write("p.parquet")
    import pyarrow.parquet

    table = pyarrow.parquet.read_table("p.parquet").to_pylist()
    assert [row["probability"] for row in table] == [one.probability for one in found.predictions]


def test_a_run_classifies_its_own_images(run: Path, folder: Path) -> None:
    labels = {
        f"{name}/{i:02}.png": name for name, first in (("china", 0), ("flower", 32)) for i in range(first, first + 8)
    }
    own = effssl.Run(run).classify(labels | {"added/broken.jpg": "china"}, workers=0)
    assert own.classifier.classes == ["china", "flower"]
    assert own.classifier.expected.images == 16  # the broken one is left out
    assert len(own.predictions) == 68 - 16


@pytest.mark.parametrize("kind", [LinearHead, NeighborHead])
def test_each_kind_of_classifier_is_chosen_where_it_is_best_and_survives_its_file(kind: type, in_tmp: Path) -> None:
    """Eight blobs around a circle, of alternating classes, are no linear problem; one of 64 dimensions is."""
    draw = np.random.default_rng(0)
    y = draw.integers(2, size=80)
    if kind is NeighborHead:
        angle = draw.integers(8, size=80)
        y = angle % 2
        turn = 2 * np.pi * angle / 8 + 0.05 * draw.standard_normal(80)
        x = np.stack([np.cos(turn), np.sin(turn)], 1)
    else:
        x = draw.standard_normal((80, 64))
        x[:, 0] = 3.0 * (2 * y - 1) + 0.5 * draw.standard_normal(80)
    trained = train_classifier(x.astype(np.float32), [f"class {label}" for label in y])[0]
    assert isinstance(trained.head, kind)
    assert trained.expected.low > 80
    encoder = effssl.load("pixels", image_size=8)
    path = Classification([], np.empty((0, 2)), trained, encoder).save("c.safetensors")
    again = load_classifier(path, x.shape[1])
    assert (again.name, again.classes, again.expected) == (trained.name, trained.classes, trained.expected)
    assert np.array_equal(again.probabilities(x), trained.probabilities(x))
    with pytest.raises(effssl.RequestError, match="cannot be used"):
        load_classifier(path, x.shape[1] + 1)


def test_labels_that_mean_nothing_are_no_better_than_chance() -> None:
    """Of many candidates, the best would seem better than it is."""
    draw = np.random.default_rng(1)
    trained = train_classifier(draw.standard_normal((60, 16)).astype(np.float32), [str(i % 2) for i in range(60)])[0]
    assert trained.expected.low < trained.expected.chance
    assert trained.expected.accuracy < max(trained.expected.compared.values()) - 1
    assert trained.probabilities(draw.standard_normal((100, 16))).max(1).mean() < 0.7


def test_every_fold_trains_on_every_class() -> None:
    y = torch.tensor([0] * 2 + [1] * 3 + [2] * 37)
    fold = stratified_folds(y)
    assert fold.bincount().max() - fold.bincount().min() <= 1
    for part in range(5):
        assert set(y[fold != part].tolist()) == {0, 1, 2}


@pytest.mark.parametrize("column", ["file", "path", "image"])  # as in tables of images
def test_labels_as_spreadsheets_write_them(column: str, in_tmp: Path) -> None:
    lines = f'\ufeffid,{column},label\r\n1,"a, b.png", left \r\n2,c.png,\r\n3,d.png,"two\nlines"\r\n'
    (in_tmp / "l.csv").write_bytes(lines.encode())
    assert read_labels("l.csv").files == {"a, b.png": "left", "d.png": "two\nlines"}


def refusal(args: list[str], capfd: pytest.CaptureFixture) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["classify", *args])
    assert stop.value.code == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    return said


def test_mistakes_are_one_line(
    digits: tuple[Path, dict[str, str]], few: dict[str, str], in_tmp: Path, capfd: pytest.CaptureFixture
) -> None:
    place = ["--data", str(digits[0]), "--out", "p.csv", *HOW]

    def said(rows: dict[str, str], header: str = "file,label") -> str:
        return refusal(["pixels", "--labels", write_csv(in_tmp / "l.csv", rows, header), *place], capfd)

    assert "l.csv has no column file (did you mean files?); its columns: files, label" in said(few, "files,label")
    assert "no column label (did you mean labels?)" in said(few, "file,labels")
    there = said(few | {"even/0000.png": "x", "no.png": "x"})
    assert "2 of 122 files of" in there
    assert "first even/0000.png (did you mean even/000.png?)" in there
    assert "labels of one class only, digit 0" in said({"even/000.png": "digit 0", "even/010.png": "digit 0"})
    assert "has no labels" in said({"even/000.png": ""})
    assert "the class rare of" in said({"even/000.png": "a", "even/002.png": "a", "even/004.png": "rare"})
    assert "has two labels, a and b" in said({"even/000.png": "a", "odd/001.png": "a", "000.png": "b", "003.png": "b"})
    assert "no file of labels at none.csv" in refusal(["pixels", "--labels", "none.csv", *place], capfd)
    assert "which labels?" in refusal(["pixels", *place], capfd)
    assert "which file to write?" in refusal(["pixels", "--labels", "l.csv"], capfd)
    assert "written as .csv or .parquet" in refusal(["pixels", "--labels", "l.csv", "--out", "p.txt"], capfd)
    assert "must be at least 0" in refusal(["pixels", "--labels", "l.csv", *place, "--next", "-1"], capfd)
    (in_tmp / "l.csv").write_bytes(b"\xff\xfe\x00")
    assert "is not a CSV file in UTF-8" in refusal(["pixels", "--labels", "l.csv", *place], capfd)
    assert not Path("p.csv").exists()


def test_a_bare_name_is_enough_where_it_is_unique(digits: tuple[Path, dict[str, str]], in_tmp: Path) -> None:
    names = [
        str(digits[0] / "a/x.png"),
        str(digits[0] / "b/x.png"),
        str(digits[0] / "b/y.png"),
        str(digits[0] / "x.png"),
    ]
    known = Names.of(names, digits[0])
    assert known.rows(["y.png", "b/x.png", "./a/x.png", "x.png", names[0]], "l.csv") == [2, 1, 0, 3, 0]
    with pytest.raises(effssl.RequestError, match=r"x\.png may be a/x\.png and b/x\.png"):
        Names.of(names[:3], digits[0]).rows(["x.png"], "l.csv")
