"""What all verbs of exploring share: feature files in place of a run, identical images, mistakes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import effssl
from effssl import RequestError
from effssl.explore.feature_files import Embedding


def test_images_that_are_all_the_same(small_blocks: list[int]) -> None:
    same = Embedding([str(i) for i in range(30)], np.ones((30, 4), np.float32))
    assert [one.distance for one in effssl.outliers(features=same, k=3, top=2)] == pytest.approx([0, 0], abs=1e-6)
    assert all(one.name != one.nearest for one in effssl.outliers(features=same, k=3))
    (group,) = effssl.duplicates(features=same)
    assert (group.keep.name, len(group.others)) == ("0", 29)
    assert len(set(effssl.subset(features=same, size=30).names)) == 30
    small_blocks.clear()  # four numbers per image are fewer than the bound is made for


def test_a_file_says_the_same_as_the_run(run: Path, folder: Path, embedding: Embedding, tmp_path: Path) -> None:
    for suffix in (".parquet", ".npz", ".csv"):
        out = tmp_path / f"f{suffix}"
        effssl.embed(run, folder, out, labels="folders", workers=0)
        assert effssl.outliers(features=out) == effssl.outliers(features=embedding)
        assert effssl.subset(features=out, size=5) == effssl.subset(features=embedding, size=5)
    assert effssl.outliers(run, folder, labels="folders", workers=0) == effssl.outliers(features=embedding)


def test_a_run_knows_its_images(run: Path, folder: Path, tmp_path: Path) -> None:
    assert effssl.outliers(run, workers=0) == effssl.outliers(run, folder, workers=0)
    query = folder / "china/17.png"
    assert effssl.neighbors(effssl.Run(run), query=query, workers=0) == effssl.neighbors(run, folder, query, workers=0)
    moved = shutil.copytree(run, tmp_path / "moved")
    config = moved / "config.yaml"
    config.write_text(config.read_text().replace(str(folder), str(tmp_path / "gone")))
    with pytest.raises(RequestError, match=r"gone, which .*moved was trained on, is not there"):
        effssl.duplicates(moved)


def test_a_pack_is_explored_as_its_folder(run: Path, folder: Path, tmp_path: Path) -> None:
    pack = effssl.pack(folder, tmp_path / "photos.pack", short_side=0, workers=0)
    asked = folder / "china/03.png"
    whole, packed = (effssl.neighbors(run, data, asked, k=3, workers=0)[0].found for data in (folder, pack))
    assert [one.name for one in packed] == [one.name for one in whole]
    assert [one.similarity for one in packed] == pytest.approx([one.similarity for one in whole], abs=1e-4)
    # This encoder is barely trained: near lower thresholds rounding decides.
    groups = [effssl.duplicates(run, data, threshold=0.99999, workers=0) for data in (folder, pack)]
    names = [[[copy.name for copy in (one.keep, *one.others)] for one in group] for group in groups]
    assert names[0] == names[1]
    assert groups[1][0].keep.width == groups[0][0].keep.width  # of the file
    assert not groups[1][0].missing


def test_requests_that_make_no_sense(run: Path, folder: Path, embedding: Embedding, tmp_path: Path) -> None:
    broken = Embedding(["a", "b"], np.array([[1, np.nan], [1, 0]], np.float32))
    one = Embedding(["a"], np.ones((1, 2), np.float32))
    wrong = [
        (lambda: effssl.neighbors(run, folder), "which image"),
        (lambda: effssl.neighbors(run, folder, "nowhere.jpg"), "no image at nowhere.jpg"),
        (lambda: effssl.neighbors(features=embedding, query="nowhere.jpg"), "add RUN"),
        (lambda: effssl.neighbors(run, features=embedding, query=folder / "added/broken.jpg"), "not an image"),
        (lambda: effssl.neighbors(run, features=embedding, query=folder / "added/cut off.jpg"), "cannot be decoded"),
        (lambda: effssl.neighbors(features=embedding, query=embedding.names[0], k=0), "k is 0"),
        (lambda: effssl.duplicates(features=embedding, threshold=1.5), "threshold is 1.5"),
        (lambda: effssl.duplicates(run, features=embedding), "needs no RUN"),
        (lambda: effssl.duplicates(data=folder, features=embedding), "leave out "),
        (lambda: effssl.duplicates("small", weights="random"), "which images"),
        (lambda: effssl.duplicates(data=folder), "which encoder"),
        (lambda: effssl.duplicates(folder), "is not a run folder; images are given by data"),
        (lambda: effssl.outliers(features=embedding, top=0), "top is 0"),
        (lambda: effssl.outliers(features=one), "has no neighbors"),
        (lambda: effssl.outliers(features=broken), "not finite"),
        (lambda: effssl.subset(features=embedding), "size is 0"),
        (lambda: effssl.subset(features=embedding, size=69), "size is 69, but there are only 68 images"),
    ]
    for call, says in wrong:
        with pytest.raises(RequestError, match=says):
            call()
    (tmp_path / "new.png").write_bytes((folder / "china/17.png").read_bytes())
    with pytest.raises(RequestError, match="another encoder"):
        effssl.neighbors("small", features=embedding, query=tmp_path / "new.png", weights="random")
