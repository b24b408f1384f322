"""Data sets as Hugging Face's `datasets` saves them, from a local folder."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from PIL import Image
from torch import Tensor

import effssl
from effssl.data import open_data
from effssl.runtime.errors import RequestError


def test_without_the_package_one_line_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(RequestError, match=r"pip install 'effssl\[hf\]'"):
        open_data(f"hf:{tmp_path}")
    with pytest.raises(RequestError, match="nothing is downloaded here"):
        open_data("hf:cifar10")


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
