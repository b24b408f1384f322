"""A table of paths, labels and splits, as .csv, .tsv and .parquet."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from torch import Tensor

import effssl
from effssl.cli import main
from effssl.data import ArrayImages, FolderImages, open_data
from effssl.runtime.errors import RequestError


@pytest.fixture
def album(tmp_path: Path, photos: Tensor) -> Path:
    """Twelve photographs without a suffix that would tell, and no table yet."""
    (tmp_path / "pictures").mkdir()
    for i in range(12):
        Image.fromarray(photos[5 * i].permute(1, 2, 0).numpy()).save(tmp_path / f"pictures/{i}.jpg")
    return tmp_path


def write(folder: Path, header: str, rows: list[str], name: str = "table.csv") -> str:
    (folder / name).write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return str(folder / name)


def labelled(folder: Path, name: str = "table.csv") -> str:
    rows = [f"pictures/{i}.jpg,{('sky', 'roof')[i % 2]},{'train' if i < 8 else 'test'}" for i in range(12)]
    return write(folder, "path,label,split", rows, name)


def test_paths_labels_and_splits(album: Path, in_tmp: Path) -> None:
    data = open_data(labelled(album))
    assert isinstance(data.train, FolderImages)
    assert data.name == "table"
    assert [path.name for path in data.train.paths] == [f"{i}.jpg" for i in range(8)]
    assert data.train.classes == ["roof", "sky"]
    assert data.train.labels.tolist() == [1, 0] * 4
    assert data.test.labels.tolist() == [1, 0] * 2
    assert open_data("table.csv").train.fingerprint() == data.train.fingerprint()
    assert open_data("table.csv", "none").train.labels is None


def test_column_names_case_and_delimiters(album: Path) -> None:
    rows = [f"pictures/{i}.jpg;{i}" for i in (10, 9, 2)]
    data = open_data(write(album, "\ufeffImage; Class", rows))
    assert data.train.classes == ["2", "9", "10"]
    assert data.train.labels.tolist() == [2, 1, 0]
    tabs = open_data(write(album, "file\tnotes", ['pictures/0.jpg\t"a, b"', "pictures/1.jpg\t"], "table.tsv"))
    assert len(tabs.train) == 2
    assert tabs.train.labels is None


@pytest.mark.parametrize("name", ["filename", "filepath", "Image_Path", "file_name"])
def test_other_names_for_the_column_of_paths(album: Path, name: str) -> None:
    data = open_data(write(album, f"{name},label", ["pictures/3.jpg,a", "pictures/1.jpg,b"]))
    assert [path.name for path in data.train.paths] == ["3.jpg", "1.jpg"]


def test_parquet_is_the_same(album: Path) -> None:
    names = [f"pictures/{i}.jpg" for i in range(12)]
    labels = [("sky", "roof")[i % 2] for i in range(12)]
    splits = ["train" if i < 8 else "test" for i in range(12)]
    pq.write_table(pa.table({"path": names, "label": labels, "split": splits}), album / "table.parquet")
    there, same = open_data(labelled(album)), open_data(str(album / "table.parquet"))
    assert same.train.fingerprint() == there.train.fingerprint()
    assert same.test.fingerprint() == there.test.fingerprint()
    pq.write_table(pa.table({"image": [{"bytes": b"x"}]}), album / "nested.parquet")
    with pytest.raises(RequestError, match="the column image holds struct"):
        open_data(str(album / "nested.parquet"))


def test_val_and_test_are_for_choices_and_scores(album: Path) -> None:
    rows = [f"pictures/{i}.jpg,{i % 2},{('train', 'Val', 'test')[i // 4]}" for i in range(12)]
    data = open_data(write(album, "path,label,split", rows))
    assert [path.name for path in data.held_out.paths] == ["4.jpg", "5.jpg", "6.jpg", "7.jpg"]
    assert [path.name for path in data.test.paths] == ["8.jpg", "9.jpg", "10.jpg", "11.jpg"]


def test_files_that_are_missing_are_listed(album: Path) -> None:
    data = open_data(write(album, "path", ["pictures/0.jpg", "gone.jpg", "pictures/1.jpg"]))
    assert data.unreadable == [str(album / "gone.jpg")]
    assert len(data.train) == 2


def test_small_images_are_kept_in_memory_with_their_names(tmp_path: Path) -> None:
    for i in range(3):
        Image.new("RGB", (20, 20), (i, 0, 0)).save(tmp_path / f"{i}.png")
    data = open_data(write(tmp_path, "path", ["2.png", "0.png"]))
    assert isinstance(data.train, ArrayImages)
    assert data.train.pixels[:, 0, 0, 0].tolist() == [2, 0]
    assert [path.name for path in data.train.paths] == ["2.png", "0.png"]


@pytest.mark.parametrize(
    ("header", "rows", "says"),
    [
        (
            "paths,label",
            ["a,b"],
            r"no column named path or .* or file_name; found: paths, label \(rename paths to path\)$",
        ),
        ("picture,label", ["a,b"], r"found: picture, label$"),
        ("path,label", [], "has no rows"),
        ("", [], "no column named path"),
        ("path,label", ["pictures/0.jpg,a", "pictures/1.jpg"], "row 2 below the header has no label"),
        ("label,path", ["a"], "row 1 below the header has no path"),
        ("path,split", ["pictures/0.jpg,trian"], r"the split 'trian' is none of .*did you mean train"),
        ("path,split", ["pictures/0.jpg,test"], "no training images"),
        ("path", ["nowhere.jpg"], "none of the 1 images"),
        ("path,label,split", ["pictures/0.jpg,a,train", "pictures/1.jpg,b,test"], "the test label 'b'"),
    ],
)
def test_tables_that_cannot_be_used(album: Path, header: str, rows: list[str], says: str) -> None:
    with pytest.raises(RequestError, match=says) as error:
        open_data(write(album, header, rows))
    assert "\n" not in str(error.value)


def test_a_near_label_column_is_said(album: Path, capsys: pytest.CaptureFixture) -> None:
    assert open_data(write(album, "path,labels", ["pictures/0.jpg,a"])).train.labels is None
    assert "did you mean labels?" in "".join(capsys.readouterr())


@pytest.mark.parametrize("name", ["noise.csv", "noise.parquet"])
def test_bytes_that_are_no_table(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(bytes(range(256)))
    with pytest.raises(RequestError, match="is not a readable table"):
        open_data(str(tmp_path / name))
    with pytest.raises(RequestError, match="no such file"):
        open_data(str(tmp_path / f"other.{name}"))


def test_a_bad_table_ends_with_code_2(album: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as end:
        main(["pretrain", "--data", write(album, "name", ["a"]), "--out", str(album / "run")])
    assert end.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_table_trains_resumes_evaluates_embeds_and_packs(album: Path) -> None:
    table = labelled(album)
    quick = {"batch_size": 4, "image_size": 32, "workers": 0, "quiet": True, "encoder": "tiny"}
    run = effssl.pretrain(table, "simsiam", epochs=1, out=album / "run", **quick)
    assert run.config.data == table
    longer = effssl.pretrain(table, "simsiam", epochs=2, out=album / "run", resume="auto", **quick)
    assert 0 <= longer.knn(k=2).value <= 100
    effssl.embed(album / "run", table, out=album / "features.npz", workers=0)
    near = effssl.neighbors(album / "run", table, album / "pictures/3.jpg", k=1, workers=0)
    assert near[0].found[0].name.startswith(str(album / "pictures"))
    packed = open_data(str(effssl.pack(table, workers=0)))
    assert packed.train.labels.tolist() == [1, 0] * 4
    assert list(packed.test.paths) == [album / f"pictures/{i}.jpg" for i in range(8, 12)]
