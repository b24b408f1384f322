"""Which labels semi-supervised fine-tuning uses."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

import effssl
from effssl.data import Data, FolderImages
from effssl.evaluation.protocols import semi
from effssl.evaluation.protocols.semi import SemiOptions, balanced_rows, choose_labels
from effssl.network.loaded import LoadedEncoder


@pytest.mark.parametrize("percent", [1, 10])
def test_a_share_of_every_class(digits: Data, percent: int) -> None:
    rows = balanced_rows(digits.train, percent / 100, seed=0)
    counts = digits.train.labels[rows].bincount(minlength=10)
    expected = (digits.train.labels.bincount() * percent / 100).round().clamp(min=1)
    assert torch.equal(counts.float(), expected)
    assert torch.equal(rows, balanced_rows(digits.train, percent / 100, seed=0))
    assert not torch.equal(rows, balanced_rows(digits.train, percent / 100, seed=1))


def test_semi_sees_only_its_labels(encoder: LoadedEncoder, digits: Data) -> None:
    score = effssl.evaluate("semi", encoder, digits, percent=10, epochs=2)
    assert score.constants["labels"] == 143
    assert score.constants["lr"] == 0.01
    assert score.constants["head_lr"] == 0.2
    assert score.constants["chosen_by"] == "class-balanced choice, seed 0"
    assert effssl.evaluate("semi", encoder, digits, epochs=1).constants["head_lr"] == 5.0


@pytest.fixture
def imagenet(tmp_path: Path) -> tuple[FolderImages, Path]:
    """Four images in ImageNet's naming, and a list of two of them (and of one that is not there)."""
    for name in ("n01440764_1", "n01440764_2", "n01443537_7", "n01443537_9"):
        folder = tmp_path / "set" / "train" / name.split("_")[0]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (80, 70)).save(folder / f"{name}.JPEG", "JPEG")
        (tmp_path / "set" / "val" / folder.name).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (80, 70)).save(tmp_path / "set" / "val" / folder.name / "v.JPEG", "JPEG")
    (tmp_path / "list.txt").write_text("n01440764_2.JPEG\nn01443537_7.JPEG\nn99999999_1.JPEG\n")
    return effssl.open_data(str(tmp_path / "set")).train, tmp_path / "list.txt"


def chosen_names(train: FolderImages, rows: Tensor) -> list[str]:
    return [train.paths[i].stem for i in rows.tolist()]


def test_lists_are_checked_and_filtered(imagenet: tuple[FolderImages, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    train, path = imagenet
    with pytest.raises(effssl.RequestError, match="sha256 differs"):
        choose_labels(train, SemiOptions(list=str(path)))
    monkeypatch.setitem(semi.LISTS, 1, ("1percent.txt", hashlib.sha256(path.read_bytes()).hexdigest()))
    rows, how = choose_labels(train, SemiOptions(list=str(path)))
    assert chosen_names(train, rows) == ["n01440764_2", "n01443537_7"]
    assert "1percent.txt" in how


def test_imagenet_lists_are_fetched_once_or_replaced_by_a_seeded_choice(
    imagenet: tuple[FolderImages, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    train, path = imagenet
    monkeypatch.setenv("EFFSSL_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(semi, "LIST_ADDRESS", (tmp_path / "nowhere").as_uri() + "/")
    assert choose_labels(train, SemiOptions())[1].startswith("class-balanced")
    monkeypatch.setattr(semi, "LIST_ADDRESS", path.parent.as_uri() + "/")
    monkeypatch.setitem(semi.LISTS, 1, ("list.txt", hashlib.sha256(path.read_bytes()).hexdigest()))
    assert chosen_names(train, choose_labels(train, SemiOptions())[0]) == ["n01440764_2", "n01443537_7"]
    path.unlink()  # from now on the stored copy serves
    assert len(choose_labels(train, SemiOptions())[0]) == 2


def made_up(names: list[str]) -> FolderImages:
    """Training images of these names; choosing labels does not open them."""
    wnids = sorted({name.split("_")[0] for name in names})
    labels = torch.tensor([wnids.index(name.split("_")[0]) for name in names])
    paths = [Path("train", name.split("_")[0], name) for name in names]
    return FolderImages(paths, torch.full((len(names), 2), 80), labels, wnids)


def test_a_list_gives_its_own_counts_in_the_classes_that_are_there(
    imagenet: tuple[FolderImages, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ImageNet-100 takes its part of ImageNet's list: 13 and 12 of two classes, the third is not there."""
    listed = [f"n0144{c}_{i}.JPEG" for c, count in (("0764", 13), ("3537", 12), ("4781", 13)) for i in range(count)]
    path = imagenet[1]
    path.write_text("\n".join(listed))
    monkeypatch.setitem(semi.LISTS, 1, ("1percent.txt", hashlib.sha256(path.read_bytes()).hexdigest()))
    train = made_up([f"n0144{c}_{i}.JPEG" for c in ("0764", "3537") for i in range(1300)])
    rows, _ = choose_labels(train, SemiOptions(list=str(path)))
    assert train.labels[rows].bincount().tolist() == [13, 12]
    assert {train.paths[i].name for i in rows.tolist()} <= set(listed)


def test_a_list_that_does_not_fit_is_replaced_unless_it_was_asked_for(
    imagenet: tuple[FolderImages, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    train, path = imagenet
    monkeypatch.setenv("EFFSSL_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(semi, "LIST_ADDRESS", (tmp_path / "nowhere").as_uri() + "/")
    monkeypatch.setitem(semi.LISTS, 1, ("list.txt", hashlib.sha256(path.read_bytes()).hexdigest()))
    (tmp_path / "cache").mkdir()
    stored = tmp_path / "cache" / "list.txt"
    renamed = made_up(["n01440764_a.png", "n01443537_b.png"])
    one_class = made_up(["n01440764_2.JPEG", "n01443537_b.JPEG"])
    for images, content in ((train, b"damaged"), (renamed, path.read_bytes()), (one_class, path.read_bytes())):
        stored.write_bytes(content)
        assert choose_labels(images, SemiOptions())[1] == "class-balanced choice, seed 0"
        assert "list.txt of the SimCLR repository is not used" in capsys.readouterr().err
    with pytest.raises(effssl.RequestError, match="none of the images that"):
        choose_labels(renamed, SemiOptions(list=str(path)))
    with pytest.raises(effssl.RequestError, match=r"no training image of 1 classes, e\.g\. n01443537"):
        choose_labels(one_class, SemiOptions(list=str(path)))
    with pytest.raises(effssl.RequestError, match="fits a folder of images only"):
        choose_labels(effssl.open_data("digits").train, SemiOptions(list=str(path)))
