"""Neighbors, duplicates, outliers and subsets: what features really say, against brute force, in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import effssl
from effssl import RequestError
from effssl.explore import similarity as blockwise
from effssl.explore.curating import farthest_first
from effssl.explore.feature_files import Embedding

CPU = torch.device("cpu")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch, embedding: Embedding) -> Iterator[list[int]]:
    """Blocks of 7 and 5 images, so that the 68 need many; how many numbers were held at a time."""
    held: list[int] = []
    real = blockwise.nearest

    def watched(query: torch.Tensor, bank: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        held.append(max(query.numel(), bank.numel(), len(query) * len(bank)))
        return real(query, bank, k)

    monkeypatch.setattr(blockwise, "BLOCK", 7 * embedding.features.shape[1])
    monkeypatch.setattr(blockwise, "QUERIES", 5)
    monkeypatch.setattr(blockwise, "PAIRS", 16)
    monkeypatch.setattr(blockwise, "nearest", watched)
    yield held
    assert max(held, default=0) <= 7 * embedding.features.shape[1]


def tile(embedding: Embedding, name: str) -> int:
    return next(row for row, path in enumerate(embedding.names) if path.endswith(name))


def test_neighbors_are_the_most_similar_images(
    embedding: Embedding, similarity: np.ndarray, small_blocks: list[int]
) -> None:
    queries = [embedding.names[row] for row in (0, 20, 67)]
    for query, result in zip(queries, effssl.neighbors(features=embedding, query=queries, k=9), strict=True):
        row = embedding.names.index(query)
        others = np.delete(similarity[row], row)
        np.testing.assert_allclose([found.similarity for found in result.found], np.sort(others)[::-1][:9], atol=1e-5)
        for found in result.found:
            assert similarity[row, embedding.names.index(found.name)] == pytest.approx(found.similarity, abs=1e-5)
            assert found.label == Path(found.name).parent.name
        assert query == result.query
        assert query not in [found.name for found in result.found]
    assert small_blocks


def test_a_query_from_elsewhere_is_encoded_and_finds_its_original(
    run: Path, folder: Path, embedding: Embedding, tmp_path: Path
) -> None:
    file = tmp_path / "elsewhere.png"
    file.write_bytes((folder / "china/17.png").read_bytes())
    first = effssl.neighbors(run, folder, str(file), k=1, workers=0)[0].found[0]
    assert first.name == str(folder / "china/17.png")
    assert first.similarity == pytest.approx(1, abs=1e-5)
    again, picture = effssl.neighbors(run, query=[file, Image.open(file)], features=embedding, k=3)
    assert again.found[0] == pytest.approx(first) or again.found[0].name == first.name
    assert picture.found[0].name == first.name
    assert len(effssl.neighbors(features=embedding, query=str(folder / "china/17.png"), k=500)[0].found) == 67


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


def test_outliers_are_far_from_their_nearest_others(
    embedding: Embedding, similarity: np.ndarray, small_blocks: list[int]
) -> None:
    others = np.sort(1 - similarity[~np.eye(68, dtype=bool)].reshape(68, 67), axis=1)
    for k in (1, 6, 500):
        expected = others[:, :k].mean(1)
        found = effssl.outliers(features=embedding, k=k, top=10)
        np.testing.assert_allclose([one.distance for one in found], np.sort(expected)[::-1][:10], atol=1e-5)
        for one in found:
            row = embedding.names.index(one.name)
            assert one.distance == pytest.approx(expected[row], abs=1e-5)
            assert 1 - similarity[row, embedding.names.index(one.nearest)] == pytest.approx(others[row, 0], abs=1e-5)
    assert small_blocks


def test_noise_is_the_odd_one_among_photographs(run: Path, folder: Path) -> None:
    assert Path(effssl.outliers(run, folder, top=1, workers=0)[0].name).name == "noise.png"


def test_images_that_are_all_the_same(small_blocks: list[int]) -> None:
    same = Embedding([str(i) for i in range(30)], np.ones((30, 4), np.float32))
    assert [one.distance for one in effssl.outliers(features=same, k=3, top=2)] == pytest.approx([0, 0], abs=1e-6)
    assert all(one.name != one.nearest for one in effssl.outliers(features=same, k=3))
    (group,) = effssl.duplicates(features=same)
    assert (group.keep.name, len(group.others)) == ("0", 29)
    assert len(set(effssl.subset(features=same, size=30).names)) == 30
    small_blocks.clear()  # four numbers per image are fewer than the bound is made for


def test_a_subset_is_greedy_k_center(
    embedding: Embedding, similarity: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("effssl.explore.curating.LOOKED_AT", 4)
    for seed in (0, 1):
        chosen, distances, radius = farthest_first(embedding.features, 25, seed, CPU)
        for i in range(1, 25):
            far = (1 - similarity[:, chosen[:i]]).min(1)
            assert distances[i] == pytest.approx(far.max(), abs=1e-5)
            assert far[chosen[i]] == pytest.approx(far.max(), abs=1e-5)
        assert radius == pytest.approx((1 - similarity[:, chosen]).min(1).max(), abs=1e-5)
        assert len(set(chosen)) == 25
    first, again = (effssl.subset(features=embedding, size=10, seed=1) for _ in range(2))
    assert first == again
    assert first.rows != effssl.subset(features=embedding, size=10, seed=0).rows
    everything = effssl.subset(features=embedding, size=68)
    assert sorted(everything.names) == sorted(embedding.names)
    assert everything.radius == pytest.approx(0, abs=1e-6)


def test_images_that_are_all_the_same_can_be_chosen_from() -> None:
    chosen, distances, radius = farthest_first(np.ones((5000, 4), np.float32), 50, 0, CPU)
    assert len(set(chosen)) == 50
    assert [*distances, radius] == pytest.approx([0] * 51, abs=1e-6)


def test_a_file_says_the_same_as_the_run(run: Path, folder: Path, embedding: Embedding, tmp_path: Path) -> None:
    for suffix in (".parquet", ".npz", ".csv"):
        out = tmp_path / f"f{suffix}"
        effssl.embed(run, folder, out, labels="folders", workers=0)
        assert effssl.outliers(features=out) == effssl.outliers(features=embedding)
        assert effssl.subset(features=out, size=5) == effssl.subset(features=embedding, size=5)
    assert effssl.outliers(run, folder, labels="folders", workers=0) == effssl.outliers(features=embedding)


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
        (lambda: effssl.duplicates(data=folder, features=embedding), "leave out --data"),
        (lambda: effssl.duplicates(run), "which images"),
        (lambda: effssl.duplicates(data=folder), "which encoder"),
        (lambda: effssl.outliers(features=embedding, top=0), "top is 0"),
        (lambda: effssl.outliers(features=one), "no others"),
        (lambda: effssl.outliers(features=broken), "not finite"),
        (lambda: effssl.subset(features=embedding), "size is 0"),
        (lambda: effssl.subset(features=embedding, size=69), "subset of 69 was asked of 68"),
    ]
    for call, says in wrong:
        with pytest.raises(RequestError, match=says):
            call()
    (tmp_path / "new.png").write_bytes((folder / "china/17.png").read_bytes())
    with pytest.raises(RequestError, match="another encoder"):
        effssl.neighbors("small", features=embedding, query=tmp_path / "new.png", weights="random")
