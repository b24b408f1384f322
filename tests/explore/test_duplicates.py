"""Near-duplicates: connected groups, against brute force and in blocks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import effssl
from effssl.explore.copies import copy_images
from effssl.explore.feature_files import Embedding
from effssl.network.loaded import LoadedEncoder


def test_duplicates_are_the_connected_groups(
    embedding: Embedding, similarity: np.ndarray, small_blocks: list[int]
) -> None:
    above = np.sort(similarity[np.triu_indices(68, 1)])[::-1]
    for threshold in (above[3], above[60], above[1000]):  # few pairs, chains, nearly everything
        threshold = float(threshold) - 1e-5
        expected = set()
        for start in range(68):
            group, todo = {start}, [start]
            while todo:
                near = set(np.flatnonzero(similarity[todo.pop()] >= threshold).tolist()) - group
                group |= near
                todo += near
            if len(group) > 1:
                expected.add(frozenset(embedding.names[row] for row in group))
        found = effssl.duplicates(features=embedding, threshold=threshold)
        assert {frozenset([g.keep.name, *(other.name for other in g.others)]) for g in found} == expected
        assert len(found) == len(expected)
        closest = [max(other.similarity for other in group.others) for group in found]
        assert closest == sorted(closest, reverse=True)
        for group in found:
            row = embedding.names.index(group.keep.name)
            for other in group.others:
                there = similarity[row, embedding.names.index(other.name)]
                assert other.similarity == pytest.approx(there, abs=1e-5)


def test_planted_copies_are_found_and_the_largest_is_kept(run: Path, folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    groups = effssl.duplicates(run, folder, threshold=0.999, workers=0)
    names = {Path(g.keep.name).name: {Path(other.name).name for other in g.others} for g in groups}
    assert names.get("03.png") == {"copy of 03.png"} or names.get("copy of 03.png") == {"03.png"}
    (encoded,) = [g for g in groups if "40.png" in g.keep.name]  # as many pixels, more bytes than the JPEG
    assert {Path(other.name).name for other in encoded.others} == {"encoded 40.jpg"}
    assert encoded.keep.bytes > encoded.others[0].bytes
    near = effssl.neighbors(run, folder, folder / "added/cropped [50].png", k=1, workers=0)
    assert Path(near[0].found[0].name).name == "50.png"
    exact = effssl.duplicates(run, folder, threshold=1.0, workers=0)
    assert [{Path(g.keep.name).name, Path(g.others[0].name).name} for g in exact] == [{"03.png", "copy of 03.png"}]
    assert sorted(folder.rglob("*")) == before


def test_the_larger_image_is_kept_though_its_file_may_be_smaller(tmp_path: Path) -> None:
    grain = Image.effect_noise((32, 32), 90).convert("RGB")
    grain.save(tmp_path / "a.png")
    grain.resize((64, 64), Image.Resampling.NEAREST).save(tmp_path / "b.jpg", quality=1)
    features = np.array([[1.0, 2.0], [1.0, 2.0]], np.float32)
    made = Embedding([str(tmp_path / "a.png"), str(tmp_path / "b.jpg")], features)
    assert (tmp_path / "a.png").stat().st_size > (tmp_path / "b.jpg").stat().st_size
    (group,) = effssl.duplicates(features=made)
    assert (group.keep.name, group.keep.width, group.keep.height) == (str(tmp_path / "b.jpg"), 64, 64)
    (tmp_path / "b.jpg").unlink()
    (group,) = effssl.duplicates(features=made)
    assert group.keep.name == str(tmp_path / "a.png")
    assert group.others[0].bytes is None


def test_class_folders_whose_names_are_no_text(encoder: LoadedEncoder, folder: Path, tmp_path: Path) -> None:
    """Names are escaped where they are shown and stored; files are found by their real names."""
    root = tmp_path / os.fsdecode(b"caf\xe9")
    root.mkdir()
    for name in ("china/03.png", "added/copy of 03.png"):
        shutil.copy(folder / name, root / os.fsdecode(b"t\xefle " + name.split("/")[1].encode()))
    with Image.open(root / os.fsdecode(b"t\xefle 03.png")) as image:
        image.resize((192, 192)).save(root / os.fsdecode(b"t\xefle large.png"))
    (group,) = effssl.duplicates(encoder, tmp_path, workers=0)
    assert group.missing == []
    assert group.keep.name.endswith(r"caf\xe9/t\xefle large.png")
    assert group.keep.width == 192
    (tmp_path / "copies").mkdir()
    copy_images([group.keep.name, group.others[0].name], tmp_path / "copies", tmp_path)
    assert (tmp_path / "copies" / root.name / os.fsdecode(b"t\xefle large.png")).is_file()
