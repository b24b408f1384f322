"""What a page holds: the same as the verbs find, thumbnails as large as they are shown, and nothing else."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import effssl
from effssl.browsing.analysis import analyze
from effssl.browsing.views import ViewOptions
from effssl.cli import main
from tests.browsing.conftest import ENCODER, EVIL, LONG
from tests.browsing.reading import data_of, thumbnails, unpacked


def test_a_page_shows_what_the_verbs_find(page_file: Path, features: Path) -> None:
    data, embedding = data_of(page_file), effssl.read_features(features)
    names = [f"{data['root']}/{name}" for name in data["names"]]
    assert names == embedding.names
    index, similarity = (unpacked(data[key], kind).reshape(len(names), data["k"]) for key, kind in
                         (("neighbors", "<u4"), ("similarity", "<u2")))  # fmt: skip
    found = effssl.neighbors(features=embedding, query=names[5], k=data["k"])[0].found
    assert [names[row] for row in index[5]] == [one.name for one in found]
    assert similarity[5] / 10000 == pytest.approx([one.similarity for one in found], abs=1e-4)
    views = {view["name"]: view["sections"] for view in data["views"]}
    groups = effssl.duplicates(features=embedding, threshold=0.999)
    assert [[names[row] for row in section["rows"]] for section in views["duplicates"]] == [
        [copy.name for copy in (group.keep, *group.others)] for group in groups
    ]
    assert len(groups) > 0
    expected = [one.name for one in effssl.outliers(features=embedding, top=7)]
    assert [names[row] for row in views["outliers"][0]["rows"]] == expected
    expected = effssl.subset(features=embedding, size=10).names
    assert [names[row] for row in views["subset"][0]["rows"]] == expected
    cluster, order = unpacked(data["cluster"], "u1"), unpacked(data["order"], "<u4")
    assert sorted(order.tolist()) == list(range(len(names)))
    assert (np.diff(cluster[order].astype(int)) >= 0).all()
    assert (np.diff(np.bincount(cluster)) <= 0).all()  # the largest first
    for points in data["maps"].values():
        assert len(unpacked(points, "<u2")) == 2 * len(names)


def test_views_say_what_they_are_for(page_file: Path, features: Path) -> None:
    hints = {view["name"]: view["hint"] for view in data_of(page_file)["views"]}
    assert "for an overview" in hints["subset"]
    assert "label random images first" in hints["subset"]
    assert "whiten" not in hints["duplicates"]  # these features are not
    embedding = effssl.read_features(features)
    options, device = ViewOptions(threshold=0.999), torch.device("cpu")
    mixed, *_ = analyze(embedding, replace(embedding), options, device).views  # as of an encoder that whitens
    assert "before whitening; all other views show those of whitened ones" in mixed.hint


def test_thumbnails_are_as_large_as_they_are_shown_and_never_enlarged(page_file: Path) -> None:
    data, found = data_of(page_file), thumbnails(page_file)
    sizes = {name.rpartition("/")[2]: image.size for name, image in zip(data["names"], found, strict=True)}
    assert data["side"] == 224
    assert sizes[LONG] == (224, 224)  # of 300
    assert sizes["01.png"] == (96, 96)
    assert data["files"] == [1] * len(found)


def test_a_page_of_images_without_files_and_of_missing_ones(
    in_tmp: Path, album: Path, capfd: pytest.CaptureFixture
) -> None:
    main(["pack", str(album / "china"), "--out", "pack"])
    shutil.make_archive("zipped", "zip", album / "china")
    for data, side in ("pack", 96), ("zipped.zip", 96):
        out = f"{data}.html"
        main(["outliers", *ENCODER, "--data", data, "--top", "3", "--out", out])
        assert {image.size for image in thumbnails(Path(out))} == {(side, side)}
        assert len(thumbnails(Path(out))) == 3
    assert "not found" not in capfd.readouterr().err
    main(["browse", *ENCODER, "--data", "pack", "--out", "whole.html"])
    assert EVIL in [name.rpartition("/")[2] for name in data_of(Path("whole.html"))["names"]]
    shutil.copytree(album / "flower", "gone")
    main(["embed", *ENCODER, "--data", "gone", "--out", "gone.npz"])
    shutil.rmtree("gone")
    main(["browse", "--features", "gone.npz", "--out", "gone.html"])
    assert "18 images of the page are not found" in capfd.readouterr().err
    assert data_of(Path("gone.html"))["files"] == [0] * 18


def test_a_page_of_one_and_of_two_images(in_tmp: Path, album: Path) -> None:
    Path("few").mkdir()
    for count, name in enumerate(("00.png", EVIL), 1):
        shutil.copy(album / "china" / name, "few")
        main(["browse", *ENCODER, "--data", "few", "--out", "few.html", "--overwrite"])
        data = data_of(Path("few.html"))
        assert len(data["names"]) == count
        assert data["k"] == count - 1


def test_tags_are_read_and_wrong_requests_are_one_line(
    in_tmp: Path, album: Path, features: Path, capfd: pytest.CaptureFixture
) -> None:
    Path("labels.csv").write_text("file,label\nchina/00.png,temple\nflower/01.png,\n")
    written = effssl.browse(features=features, data=album, out="page.html", tags="labels.csv")
    assert data_of(written)["tags"] == {str(data_of(written)["names"].index("china/00.png")): "temple"}
    Path("other.csv").write_text("file,label\nnowhere.png,x\n")
    base = ["browse", "--features", str(features)]
    wrong = {
        "the page is an .html file": [*base, "--out", "page.txt"],
        "page.html exists": [*base, "--out", "page.html"],
        "which encoder?": ["browse", "--data", str(album)],
        "which images?": ["browse", *ENCODER],
        "nowhere.png": [*base, "--out", "a.html", "--tags", "other.csv"],
        "--port is 70000": [*base, "--port", "70000"],
        "threshold is 2.0": [*base, "--threshold", "2"],
        "size is 0": [*base, "--size", "0"],
        "another encoder": [
            "browse",
            "small",
            "--weights",
            "random",
            "--image-size",
            "16",
            *base[1:],
            "--out",
            "a.html",
        ],
    }
    for expected, command in wrong.items():
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(command)
        assert stop.value.code == 2
        shown = capfd.readouterr().err.strip().splitlines()[-1]
        assert expected in shown
    assert not Path("a.html").exists()
