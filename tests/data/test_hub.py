"""Data sets as Hugging Face's `datasets` saves them: from a local folder, from its caches, by name and offline."""

from __future__ import annotations

import io
import shutil
import sys
import time
from pathlib import Path

import pytest
from PIL import Image
from torch import Tensor

import effssl
from effssl.cli import main
from effssl.data import open_data
from effssl.runtime.errors import RequestError


def test_without_the_package_one_line_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(RequestError, match=r"pip install 'effssl\[hf\]'"):
        open_data(f"hf:{tmp_path}")
    with pytest.raises(RequestError, match="names no local folder"):
        open_data("hf:/nowhere/at/all")


@pytest.fixture
def saved(tmp_path: Path, photos: Tensor, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A saved data set of twelve photographs in train and test, the folder of its Parquet files beside it."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("EFFSSL_DATA", str(tmp_path / "data"))
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["sky", "roof"])})
    splits = {}
    (tmp_path / "parquet").mkdir()
    for name, rows in (("train", range(8)), ("test", range(8, 12))):
        images = []
        for i in rows:
            content = io.BytesIO()
            Image.fromarray(photos[5 * i].permute(1, 2, 0).numpy()).save(content, "PNG")
            images.append({"bytes": content.getvalue(), "path": None})
        splits[name] = datasets.Dataset.from_dict({"image": images, "label": [i % 2 for i in rows]}, features=features)
        splits[name].to_parquet(str(tmp_path / f"parquet/{name}-00000-of-00001.parquet"))
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "saved"))
    return tmp_path / "saved"


def test_splits_labels_and_pixels(saved: Path, photos: Tensor) -> None:
    data = open_data(f"hf:{saved}")
    assert data.train.classes == ["roof", "sky"]
    assert data.train.labels.tolist() == [1, 0] * 4
    assert data.test.labels.tolist() == [1, 0] * 2
    assert data.test.image(1).tobytes() == photos[45].permute(1, 2, 0).numpy().tobytes()
    only = open_data(f"hf:{saved}:test", "none")
    assert len(only.train) == 4
    assert only.test is None
    assert only.train.labels is None
    with pytest.raises(RequestError, match=r"no split 'tset'.*did you mean test"):
        open_data(f"hf:{saved}:tset")
    parquet = open_data(f"hf:{saved.with_name('parquet')}")
    assert parquet.train.fingerprint() == data.train.fingerprint()


def test_a_format_that_was_saved_changes_nothing(saved: Path) -> None:
    import datasets

    expected = open_data(f"hf:{saved}").train
    for name, kind, columns in (("numpy", "numpy", ["image", "label"]), ("few", None, [])):
        data = datasets.load_from_disk(str(saved / "train")).with_format(kind, columns=columns)
        data.save_to_disk(str(saved.parent / name))
        found = open_data(f"hf:{saved.parent / name}").train
        assert found.labels.tolist() == expected.labels.tolist()
        assert found.image(3).tobytes() == expected.image(3).tobytes()


def test_folders_that_hold_no_data_set(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match="neither a saved data set nor Parquet files"):
        open_data(f"hf:{tmp_path / 'empty'}")
    (saved / "train/state.json").write_text("{")
    with pytest.raises(RequestError, match="is not a data set that can be read"):
        open_data(f"hf:{saved}")


def test_a_saved_data_set_trains_resumes_evaluates_embeds_and_packs(saved: Path, tmp_path: Path) -> None:
    spec = f"hf:{saved}"
    quick = {"batch_size": 4, "image_size": 32, "workers": 1, "quiet": True, "encoder": "tiny"}
    run = effssl.pretrain(spec, "simsiam", epochs=1, out=tmp_path / "run", **quick)
    assert run.config.data == spec
    longer = effssl.pretrain(spec, "simsiam", epochs=2, out=tmp_path / "run", resume="auto", **quick)
    assert 0 <= longer.knn(k=2).value <= 100
    assert len(effssl.embed(tmp_path / "run", spec, tmp_path / "features.npz", workers=0).names) == 12
    packed = open_data(str(effssl.pack(spec, tmp_path / "packed", workers=0)))
    assert packed.train.labels.tolist() == [1, 0] * 4


# ---------------------------------------------------------------------------------------------------------------
# By name


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches of Hugging Face, and an address where nobody answers."""
    datasets, constants = pytest.importorskip("datasets"), pytest.importorskip("huggingface_hub").constants
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf/datasets"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf/hub"))
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", "http://127.0.0.1:9")
    return tmp_path / "hf"


@pytest.fixture
def cached(saved: Path, offline: Path) -> str:
    """The same photographs, loaded before by `datasets`, as it keeps those of the Hub."""
    import datasets

    shapes = saved.with_name("parquet").rename(saved.with_name("shapes"))
    datasets.load_dataset(str(shapes))
    shutil.rmtree(shapes)
    (offline / "datasets/shapes").rename(offline / "datasets/somebody___shapes")
    return "hf:somebody/shapes"


def test_a_set_that_was_loaded_before_is_read_from_the_cache(
    saved: Path, cached: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    there = open_data(f"hf:{saved}")
    capfd.readouterr()
    data = open_data(cached)
    assert capfd.readouterr().err == ""
    assert data.name == "shapes"
    assert data.train.fingerprint() == there.train.fingerprint()
    assert data.test.labels.tolist() == there.test.labels.tolist()
    assert len(open_data(f"{cached}:test").train) == 4
    quick = {"batch_size": 4, "image_size": 32, "workers": 1, "quiet": True, "encoder": "tiny"}
    run = effssl.pretrain(cached, "simsiam", epochs=1, out=tmp_path / "run", **quick)
    assert run.config.data == cached  # a name is the same from everywhere
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    longer = effssl.pretrain(cached, "simsiam", epochs=2, out=tmp_path / "run", resume="auto", **quick)
    assert 0 <= longer.knn(k=2).value <= 100
    packed = open_data(str(effssl.pack(cached, tmp_path / "packed", workers=0)))
    assert packed.train.labels.tolist() == [1, 0] * 4


def test_downloaded_files_are_read_if_all_are_there(saved: Path, offline: Path) -> None:
    repository = offline / "hub/datasets--somebody--shapes"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text("0" * 40)
    (repository / "snapshots").mkdir()
    snapshot = saved.with_name("parquet").rename(repository / "snapshots" / ("0" * 40))
    assert open_data("hf:somebody/shapes").train.fingerprint() == open_data(f"hf:{saved}").train.fingerprint()
    (snapshot / "train-00000-of-00001.parquet").rename(snapshot / "train-00000-of-00002.parquet")
    with pytest.raises(RequestError, match="cannot be fetched"):
        open_data("hf:somebody/shapes")


def test_offline_one_line_says_where_to_put_the_files(
    offline: Path, in_tmp: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    with pytest.raises(SystemExit) as ended:
        main(["pretrain", "--data", "hf:somebody/shapes", "--epochs", "1"])
    assert time.monotonic() - started < 10
    assert (ended.value.code, list(in_tmp.glob("runs"))) == (2, [])
    (line,) = capfd.readouterr().err.splitlines()
    assert f"hf:somebody/shapes is neither a local folder nor in {offline}/datasets, and cannot be fetched: " in line
    assert line.endswith("into a folder and give hf:FOLDER")


def test_a_damaged_cache_is_no_reason_to_fetch_anything(cached: str, offline: Path) -> None:
    (about,) = (offline / "datasets/somebody___shapes").glob("*/*/*/dataset_info.json")
    about.write_text("{")
    with pytest.raises(RequestError, match=r"cannot be read from .*datasets: .*; put its"):
        open_data(cached)
