"""The verbs of effssl.explore on the command line: tables, files, one line for a mistake."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import effssl
from effssl.cli import main
from effssl.explore.feature_files import Embedding
from tests.browsing.reading import data_of, thumbnails


@pytest.fixture(scope="module")
def features(run: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("features") / "f.parquet"
    main(["embed", str(run), "--data", str(folder), "--labels", "folders", "--workers", "0", "--out", str(out)])
    return str(out)


def test_embed_prints_a_summary(
    run: Path, folder: Path, in_tmp: Path, embedding: Embedding, capsys: pytest.CaptureFixture
) -> None:
    args = ["embed", str(run), "--data", str(folder), "--workers", "0", "--out", "f.csv"]
    for _ in range(2):  # the second time it is finished
        main(args)
        shown = capsys.readouterr().out
        assert f"f.csv: 68 images × {embedding.features.shape[1]} features, 2 could not be read" in shown


def test_neighbors_table_and_file(
    features: str, folder: Path, in_tmp: Path, embedding: Embedding, capsys: pytest.CaptureFixture
) -> None:
    queries = [str(folder / "china/03.png"), str(folder / "added/cropped [50].png")]
    main(["neighbors", "--features", features, "--query", *queries, "--k", "2", "--out", "n.csv"])
    shown = capsys.readouterr().out
    assert "copy of 03.png" in shown
    assert "1.0000" in shown
    assert "cropped [50].png" in shown  # not taken for markup
    with Path("n.csv").open() as file:
        rows = list(csv.DictReader(file))
    expected = effssl.neighbors(features=embedding, query=queries, k=2)
    assert [row["image"] for row in rows] == [found.name for result in expected for found in result.found]
    assert list(rows[0]) == ["query", "rank", "image", "similarity", "label"]
    assert rows[0]["label"] == "added"


def test_a_query_given_twice_is_answered_once(features: str, folder: Path, in_tmp: Path) -> None:
    query = str(folder / "china/03.png")
    main(["neighbors", "--features", features, "--query", query, query, "--k", "2", "--out", "n.json"])
    assert [row["rank"] for row in json.loads(Path("n.json").read_text())] == [1, 2]


def test_an_only_image_has_no_neighbors(run: Path, folder: Path, in_tmp: Path, capsys: pytest.CaptureFixture) -> None:
    Path("one").mkdir()
    shutil.copy(folder / "china/03.png", "one")
    query = ["--query", "one/03.png", "--out", "n.csv"]
    main(["neighbors", str(run), "--data", "one", "--workers", "0", *query])
    assert "nearest to one/03.png: none" in capsys.readouterr().out
    assert Path("n.csv").read_text() == "query,rank,image,similarity,label\n"


def test_duplicates_table_and_file(
    features: str, run: Path, folder: Path, in_tmp: Path, capsys: pytest.CaptureFixture
) -> None:
    main(["duplicates", "--features", features, "--threshold", "1", "--out", "d.json"])
    printed = " ".join(capsys.readouterr().out.split())  # a title may be wrapped
    assert "candidates for near-duplicates: 1 groups, 1 images besides those to keep" in printed
    rows = json.loads(Path("d.json").read_text())
    assert [(row["group"], row["do"]) for row in rows] == [(1, "keep"), (1, "candidate")]
    assert {Path(row["image"]).name for row in rows} == {"03.png", "copy of 03.png"}
    assert (rows[0]["width"], rows[0]["height"]) == (96, 96)
    main(["duplicates", str(run), "--data", str(folder / "china"), "--workers", "0", "--threshold", "1",
          "--out", "none.csv"])  # fmt: skip
    assert "no two images have a similarity of 1.0 or more" in capsys.readouterr().out
    assert Path("none.csv").read_text() == "group,do,image,similarity,width,height,bytes\n"


def test_which_to_keep_is_the_same_from_any_folder_and_unknown_without_the_files(
    run: Path, folder: Path, in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    for name in ("here/photos", "elsewhere"):
        Path(name).mkdir(parents=True)
    with Image.open(folder / "china/03.png") as image:
        image.save("here/photos/a.png")
        image.resize((192, 192), Image.Resampling.NEAREST).save("here/photos/b.png")
    monkeypatch.chdir("here")
    main(["embed", str(run), "--data", "photos", "--workers", "0", "--out", "../f.npz"])
    monkeypatch.chdir("../elsewhere")
    args = ["duplicates", "--features", "../f.npz", "--threshold", "0.9", "--overwrite", "--out", "d.json"]

    def written() -> list[tuple[str, str]]:
        main(args)
        return [(Path(row["image"]).name, row["do"]) for row in json.loads(Path("d.json").read_text())]

    assert written() == [("b.png", "keep"), ("a.png", "candidate")]
    assert "missing" not in capfd.readouterr().err
    Path("../here/photos/b.png").unlink()
    assert {do for _, do in written()} == {"?"}
    assert re.search(r"the image to keep is unknown .* \(1\), e\.g\. \S+b\.png\n", capfd.readouterr().err)


def test_outliers_and_subset(features: str, in_tmp: Path, embedding: Embedding, capsys: pytest.CaptureFixture) -> None:
    main(["outliers", "--features", features, "--top", "3", "--k", "5", "--out", "o.json"])
    shown = capsys.readouterr().out
    assert "noise.png" in shown
    assert not re.search("│ +/", shown)  # the common beginning of all paths is printed once, also of the nearest
    rows = json.loads(Path("o.json").read_text())
    assert [row["image"] for row in rows] == [one.name for one in effssl.outliers(features=embedding, k=5, top=3)]
    main(["subset", "--features", features, "--size", "60", "--out", "s.csv"])
    shown = capsys.readouterr().out
    assert "60 diverse images" in shown
    assert "10 more; all are in s.csv" in shown  # the screen has fifty
    with Path("s.csv").open() as file:
        assert [row["image"] for row in csv.DictReader(file)] == effssl.subset(features=embedding, size=60).names


def test_a_subset_as_a_list_and_as_copies(
    features: str, folder: Path, in_tmp: Path, embedding: Embedding, capfd: pytest.CaptureFixture
) -> None:
    args = ["subset", "--features", features, "--size", "9"]
    main([*args, "--out", "s.txt", "--copy-to", "new/chosen"])
    assert "copied: 9 images to new/chosen" in capfd.readouterr().out
    names = Path("s.txt").read_text().splitlines()
    assert names == effssl.subset(features=embedding, size=9).names
    copies = {path.relative_to("new/chosen") for path in Path("new/chosen").rglob("*.*")}
    assert copies == {Path(name).relative_to(folder) for name in names}
    assert all((Path("new/chosen") / copy).read_bytes() == (folder / copy).read_bytes() for copy in copies)
    main([*args, "--copy-to", "new/chosen", "--overwrite"])
    np.savez("gone.npz", path=["/gone/a.png", "/gone/b.png"], features=np.eye(2, dtype=np.float32))
    wrong = {
        "new/chosen is not empty": [*args, "--copy-to", "new/chosen"],
        "s.txt is not a folder": [*args, "--copy-to", "s.txt"],
        "2 of 2 images are no files": ["subset", "--features", "gone.npz", "--size", "2", "--copy-to", "gone"],
        "written as .csv, .json or .html": ["outliers", "--features", features, "--out", "o.txt"],
    }
    for expected, command in wrong.items():
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(command)
        assert stop.value.code == 2
        assert expected in capfd.readouterr().err
    assert not Path("gone").exists()


def test_a_page_shows_the_images(features: str, folder: Path, in_tmp: Path) -> None:
    query = str(folder / "china/03.png")
    main(
        [
            "neighbors",
            "--features",
            features,
            "--query",
            query,
            str(folder / "flower/40.png"),
            "--k",
            "4",
            "--out",
            "n.html",
        ]
    )
    data = data_of(Path("n.html"))
    assert [view["name"] for view in data["views"]] == ["neighbors"]
    first, second = data["views"][0]["sections"]
    assert data["names"][first["rows"][0]] == "china/03.png"
    assert len(first["rows"]) == len(second["rows"]) == 1 + 4
    assert data["names"][first["rows"][1]] == "added/copy of 03.png"
    assert first["captions"][:2] == ["query", "rank 1 · 1.000"]
    assert data["classes"][data["labels"][first["rows"][1]]] == "added"
    shown = thumbnails(Path("n.html"))
    assert len(shown) == len(data["names"])
    assert shown[0].size == (96, 96)
    assert "http" not in Path("n.html").read_text().replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    main(["duplicates", "--features", features, "--threshold", "1", "--out", "d.html"])
    (group,) = data_of(Path("d.html"))["views"][0]["sections"]
    assert (group["title"], group["first"], len(group["rows"])) == ("Group 1", "keep", 2)
    assert group["captions"] == ["1.000 · 96×96", "1.000 · 96×96"]


def test_a_page_shows_images_without_files_and_reports_missing_ones(
    folder: Path, in_tmp: Path, capfd: pytest.CaptureFixture
) -> None:
    main(["pack", str(folder / "china"), "--out", "pack"])
    how = ["--weights", "random", "--image-size", "16", "--workers", "0"]
    pixels = json.loads(Path("pack/pack.json").read_text())
    Path("pack/pack.json").write_text(json.dumps(pixels | {"root": "gone"}))  # the packed files were deleted
    for data, size in ("digits", (8, 8)), ("pack", (96, 96)):
        main(["outliers", "small", "--data", data, *how, "--top", "3", "--out", f"{data}.html"])
        shown = thumbnails(Path(f"{data}.html"))
        assert [image.size for image in shown] == [size] * 3
        assert all(max(high - low for low, high in image.convert("RGB").getextrema()) > 50 for image in shown)
    assert "not found" not in capfd.readouterr().err
    main(["embed", "small", "--data", "digits", *how, "--out", "digits.npz"])
    main(["outliers", "--features", "digits.npz", "--top", "3", "--out", "none.html"])
    assert thumbnails(Path("none.html")) == []
    assert "3 images of the page are not found" in capfd.readouterr().err


def test_a_threshold_that_distinguishes_few_images_is_reported(
    features: str, similarity: np.ndarray, capfd: pytest.CaptureFixture
) -> None:
    nearest = np.sort(similarity, axis=1)[:, -2]  # of the nearest other image
    usual = float(np.quantile(nearest, 0.5, method="lower"))
    main(["duplicates", "--features", features, "--threshold", "0.01"])
    said = capfd.readouterr().err
    assert "68 of 68 images are one group" in said
    assert float(re.findall(r"to its nearest neighbor is (\S+)\n", said)[0]) == pytest.approx(usual, abs=2e-3)
    assert "raise --threshold" in said
    advised = re.findall(r"to (\S+) for example", said)[0]
    main(["duplicates", "--features", features, "--threshold", advised])
    assert "raise --threshold" not in capfd.readouterr().err


def test_tables_fit_the_screen(in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = [f"{'a long summer ' * 5}{i}/{'holiday ' * 6}{i}.png" for i in range(4)]
    for name in names:
        Path(name).parent.mkdir()
        Image.new("RGB", (1200, 1200)).save(name)
    vectors = np.array([[1, 0], [1, 1e-4], [0.5, 1], [1, 0.3]], np.float32)
    np.savez("f.npz", path=names, features=vectors)
    for command in ["neighbors", "--query", names[0]], ["duplicates"], ["outliers"], ["subset", "--size", "4"]:
        main([*command, "--features", "f.npz"])
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        rows = [line for line in lines if line.startswith("│")]
        paths = [len(re.findall(r"holiday \d\.png +│", row)) for row in rows]
        assert set(paths) == {2 if command == ["outliers"] else 1}
        assert all(row.strip("│ ")[0].isalnum() for row in rows)  # none is wrapped
    main(["duplicates", "--features", "f.npz", "--out", "d.json"])
    for row in json.loads(Path("d.json").read_text()):
        assert row["similarity"] <= 1
        assert row["width"] == 1200


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["embed", "RUN", "--data", "FOLDER"], "which file to write? --out"),
        (["embed", "--data", "FOLDER", "--out", "f.npz"], "which encoder?"),
        (
            ["embed", "small", "--weights", "random", "--out", "f.npz"],
            "which images? a run folder names its own; else --data FOLDER",
        ),
        (["embed", "RUN", "--data", "nowhere", "--out", "f.npz"], "no data set or folder named 'nowhere'"),
        (["embed", "small", "--data", "FOLDER", "--out", "f.npz"], "small has no pretrained weights"),
        (["embed", "RUN", "--data", "FOLDER", "--out", "f.xlsx"], "feature files end with .parquet, .npz, .csv"),
        (["embed", "RUN", "--data", "FOLDER", "--out", "mine.csv"], "mine.csv exists and is not from effssl embed"),
        (["neighbors", "RUN", "--data", "FOLDER"], "which image? --query IMAGE"),
        (["duplicates", "resnet18"], "which images? a run folder names its own; else --data FOLDER, or --features"),
        (["duplicates", "--features", "none.npz"], "no feature file at none.npz; write one: effssl embed"),
        (["duplicates", "--features", "mine.csv"], "neither a column path nor a column index"),
        (["duplicates", "RUN", "--features", "mine.csv"], "needs no RUN"),
        (["outliers", "RUN", "--data", "FOLDER", "--out", "table.txt"], "written as .csv, .json or .html"),
        (["outliers", "RUN", "--data", "FOLDER", "--out", "mine.csv"], "mine.csv exists"),
        (["outliers", "RUN", "--data", "FOLDER", "--out", "no/such/table.csv"], "in an existing folder"),
        (["subset", "RUN", "--data", "FOLDER"], "the number of images to choose"),
    ],
)
def test_a_mistake_gets_one_line(
    args: list[str], says: str, run: Path, folder: Path, in_tmp: Path, capsys: pytest.CaptureFixture
) -> None:
    Path("mine.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit) as stop:
        main([{"RUN": str(run), "FOLDER": str(folder)}.get(arg, arg) for arg in args])
    assert stop.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("effssl: ")]
    assert len(lines) == 1
    assert says in lines[0]
    assert [path.name for path in in_tmp.iterdir()] == ["mine.csv"]
