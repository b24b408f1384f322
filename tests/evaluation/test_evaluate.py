"""What is asked wrongly gets one line before anything slow; what cannot be read is counted and named."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

import effssl
from effssl.cli import main
from effssl.data import Data
from effssl.network.loaded import LoadedEncoder

PHOTO = Image.fromarray(load_sample_image("flower.jpg"))
QUICK = {
    "knn": {},
    "linear": {"epochs": 1, "lr": [0.1]},
    "finetune": {"epochs": 1},
    "semi": {"epochs": 1, "percent": 10},
    "probe-rotation": {"epochs": 1},
    "probe-contrastive": {"batch": 4},
    "transfer": {"grid": 2, "max_iter": 5},
    "retrieval": {},
    "clusters": {"restarts": 1, "clusters": 2},
    "robustness": {},
}


def labelled_folder(root: Path, count: int = 6) -> Path:
    """Two classes in train/ and test/, larger than what is kept in memory."""
    for part, shift in (("train", 0), ("test", 7)):
        for name, top in (("left", 0), ("right", 200)):
            (root / part / name).mkdir(parents=True)
            for i in range(count):
                x = 11 * i + shift
                PHOTO.crop((x, top, x + 90, top + 80)).save(root / part / name / f"{i}.jpg")
    return root


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 9 // 10])  # the header stays


BAD = [
    ("knn", {"k": -1}),
    ("knn", {"temperature": 0.0}),
    ("linear", {"epochs": 0}),
    ("linear", {"lr": [0.1, float("nan")]}),
    ("linear", {"lr": [-1.0]}),
    ("linear", {"batch": -1}),
    ("finetune", {"batch": 0}),
    ("finetune", {"lr": float("inf")}),
    ("finetune", {"head_lr": 0.0}),
    ("semi", {"percent": 5}),
    ("semi", {"lr": -0.1}),
    ("probe-rotation", {"hidden": 0}),
    ("probe-rotation", {"seed": -1}),
    ("probe-contrastive", {"batch": 1}),
    ("transfer", {"grid": 0}),
    ("transfer", {"max_iter": 0}),
    ("transfer", {"imagenet": 101.0}),
    ("detect", {"schedule": float("nan")}),
    ("detect", {"limit": -1}),
    ("retrieval", {"recall_at": []}),
    ("retrieval", {"recall_at": [1, 0]}),
    ("clusters", {"restarts": 0}),
    ("clusters", {"clusters": -2}),
    ("robustness", {"k": -5}),
]


@pytest.mark.parametrize(("what", "settings"), BAD)
def test_values_out_of_range_are_refused_by_name(what: str, settings: dict, encoder: LoadedEncoder) -> None:
    (name,) = settings
    with pytest.raises(effssl.RequestError, match=rf"{what}: {name}") as error:
        effssl.evaluate(what, encoder, "no such data", **settings)  # refused before data are looked for
    assert "\n" not in str(error.value)


def refused(capsys: pytest.CaptureFixture, *args: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(["eval", *args])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    return said


def test_refusals_on_the_command_line(in_tmp: Path, capsys: pytest.CaptureFixture) -> None:
    run = effssl.pretrain("digits", "rotation", out="run", epochs=1, quiet=True, subset=64, batch_size=32)
    small = ["small", "--weights", "random", "--data", "digits"]
    assert "k is -1" in refused(capsys, "knn", *small, "--k", "-1")
    assert "image_size is -1" in refused(capsys, "knn", *small, "--image-size", "-1")
    assert "cannot be written" in refused(capsys, "knn", *small, "--out", "nowhere/a.json")
    assert "cannot be written" in refused(capsys, "knn", *small, "--out", "run")
    assert "needs no --encoder" in refused(capsys, "knn", *small, "--encoder", "resnet18")
    assert "needs no --weights" in refused(capsys, "knn", "run", "--weights", "random")
    assert "needs no --image-size" in refused(capsys, "knn", str(run.encoder_path), "--image-size", "32")
    assert "--classes chooses" in refused(capsys, "knn", "run", "--classes", "imagenet100")
    for name in ("results.json", "encoder.safetensors", "checkpoint.previous.pt"):
        assert "file of the run itself" in refused(capsys, "knn", "run", "--out", f"run/{name}")
        assert "file of the run itself" in refused(capsys, "knn", str(run.encoder_path), "--out", f"run/{name}")
    for number, text in enumerate(("my notes", "[1]", '{"arms": {}}', "")):
        Path(f"{number}.json").write_text(text)
        assert "exists and is not a score" in refused(capsys, "knn", "run", "--out", f"{number}.json")
        assert Path(f"{number}.json").read_text() == text
    assert not (run.folder / "results.json").exists()


def test_a_score_is_written_over_a_score(in_tmp: Path, capsys: pytest.CaptureFixture) -> None:
    effssl.pretrain("digits", "rotation", out="run", epochs=1, quiet=True, subset=64, batch_size=32)
    for k in (3, 4):
        main(["eval", "knn", "run", "--k", str(k), "--out", "run/mine.json"])
        assert json.loads(Path("run/mine.json").read_text())["constants"]["k"] == k
    main(["eval", "probe", "--help"])
    assert "probe contrastive RUN, or effssl eval probe rotation RUN" in capsys.readouterr().out


def test_scores_that_are_none_stay_and_are_not_read(in_tmp: Path, capsys: pytest.CaptureFixture) -> None:
    """Somebody edited results.json: what is in it stays, what is no score is not shown, and nothing breaks."""
    run = effssl.pretrain("digits", "rotation", out="run", epochs=1, quiet=True, subset=64, batch_size=32)
    run.knn(k=3)
    good = run.results()
    odd = {"a": 51.2, "b": None, "c": {}, "d": good["knn k=3"] | {"value": "high"}, "e": {"protocol": "knn"}}
    odd |= {"f": good["knn k=3"] | {"value": float("nan")}, "g": good["knn k=3"] | {"source": "digits"}}
    run.results_path.write_text(json.dumps(odd | good))
    assert run.results() == good
    run.report(images=0)
    main(["export", "run", "--to", "safetensors", "--out", "out.safetensors"])
    run.knn(k=4)
    assert list(json.loads(run.results_path.read_text())) == [*odd, "knn k=3", "knn k=4"]
    capsys.readouterr()
    for text in ("[]", "{"):
        run.results_path.write_text(text)
        assert str(run.results_path) in refused(capsys, "knn", "run", "--data", "no such data")  # before all else
        assert run.results_path.read_text() == text


def test_one_score_per_place_and_none_is_lost(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two folders of one name, seen from two places, are two data sets; processes that add scores wait in line."""
    run = effssl.pretrain("digits", "rotation", out=in_tmp / "run", epochs=1, quiet=True, subset=64, batch_size=32)
    for place in ("here", "there"):
        labelled_folder(in_tmp / place / "set", 2)
        monkeypatch.chdir(in_tmp / place)
        run.evaluate("knn", "set")
    run.evaluate("knn", "digits")
    places = [in_tmp.resolve() / place / "set" for place in ("here", "there")]
    assert list(run.results()) == [*(f"knn@{place}" for place in places), "knn@digits"]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda k: run.knn(k=k), range(1, 7)))
    assert {f"knn k={k}" for k in range(1, 7)} <= set(run.results())
    with run.results_locked(), monkeypatch.context() as patch:
        patch.setattr("effssl.run.RESULTS_WAIT", 0.1)
        with pytest.raises(effssl.RequestError, match="are being written by process"):
            run.knn()


def test_data_by_name_and_wrong_kinds(encoder: LoadedEncoder, digits: Data) -> None:
    by_name = effssl.evaluate("knn", encoder, "digits")
    assert by_name.value == effssl.evaluate("knn", encoder, digits).value
    with pytest.raises(effssl.RequestError, match=r"effssl\.load gives it, not str"):
        effssl.evaluate("knn", "resnet18", digits)  # type: ignore[arg-type]
    with pytest.raises(effssl.RequestError, match="a data set or its name, not on int"):
        effssl.evaluate("knn", encoder, 5)  # type: ignore[arg-type]
    with pytest.raises(effssl.RequestError, match="the path of a folder, not on Data"):
        effssl.evaluate("detect", encoder, digits)


@pytest.mark.parametrize("what", QUICK)
def test_files_that_cannot_be_read_are_counted_and_named(
    what: str, encoder: LoadedEncoder, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    root = labelled_folder(tmp_path / "set")
    broken, cut = root / "test/left/0.jpg", root / "test/right/1.jpg"
    broken.write_bytes(b"no image at all")
    truncate(cut)
    source = effssl.evaluate(what, encoder, str(root), **QUICK[what]).source
    if what != "probe-contrastive":  # it leaves a partial batch out, and the truncated file may be there
        assert source["test_images"] == 10
        assert source["unreadable"] == 2
        line = next(text for text in capsys.readouterr().err.splitlines() if text.startswith("cannot be read"))
        assert str(broken) in line
        assert str(cut) in line
    assert str(broken) in source["unreadable_files"]


@pytest.mark.parametrize(("what", "part"), [*((what, "test") for what in QUICK), ("knn", "train"), ("semi", "train")])
def test_nothing_that_can_be_decoded(what: str, part: str, encoder: LoadedEncoder, tmp_path: Path) -> None:
    root = labelled_folder(tmp_path / "set", 3)
    for path in (root / part).rglob("*.jpg"):
        truncate(path)
    with pytest.raises(effssl.RequestError, match=r"none of the \d+ images .*can be decoded") as error:
        effssl.evaluate(what, encoder, str(root), **QUICK[what])
    assert "\n" not in str(error.value)


def test_labels_and_classes_of_other_data(in_tmp: Path) -> None:
    """A run that saw no labels is measured by those of --data; --classes reads some of its folders."""
    root = labelled_folder(in_tmp / "set")
    run = effssl.pretrain(
        str(root), "rotation", out="run", labels="none", epochs=1, quiet=True, batch_size=4, encoder="small",
        image_size=32,
    )  # fmt: skip
    assert run.evaluate("knn", str(root)).source["test_images"] == 12
    for part in ("train", "test"):
        (root / part / "third").mkdir()
        PHOTO.crop((50, 50, 150, 150)).save(root / part / "third" / "0.jpg")
    Path("two.txt").write_text("left\nright\n")
    assert run.evaluate("knn", str(root)).source["test_images"] == 13
    assert run.evaluate("knn", str(root), classes="two.txt").source["test_images"] == 12
    assert f"knn@{root} classes={Path('two.txt').resolve()}" in json.loads((run.folder / "results.json").read_text())


def test_a_score_names_its_encoder_and_the_libraries(digits: Data) -> None:
    parts = {"train": digits.train.select(torch.arange(64)), "test": digits.test.select(torch.arange(32))}
    some = dataclasses.replace(digits, **parts)
    score = effssl.evaluate("knn", effssl.load("timm:resnet10t", weights="random", image_size=32), some)
    assert score.source["encoder"] == "timm:resnet10t"
    assert {"scikit-learn", "timm", "torch"} <= set(score.source["versions"])
    assert np.isfinite(score.value)
