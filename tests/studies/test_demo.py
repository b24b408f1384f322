"""The demo on the embedded digits, shortened: a study of three arms with a table, a figure and a comparison."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from effssl.runtime.errors import RequestError
from effssl.studies import demo, scales


def test_demo_runs_and_is_not_repeated(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(scales.CPU_EPOCHS, "demo", 1)
    monkeypatch.setenv("COLUMNS", "120")  # wide enough for whole lines
    demo.main(["--data", "digits", "--out", "here"])
    text = capsys.readouterr()
    for words in ("byol+rotation, efficient", "the paper's form", "to byol"):
        assert words in text.out
    for line in ("byol       epoch", "efficient  epoch", "paper      epoch"):
        assert line in text.err
    assert (in_tmp / "here/demo.png").stat().st_size > 10_000
    rows = [line.split("│")[1].strip() for line in text.out.splitlines() if line.count("│") > 3]
    assert rows[:2] == ["raw pixels", "untrained"]
    assert "Comparison" in (in_tmp / "here/comparison.html").read_text()
    results = json.loads((in_tmp / "here/results.json").read_text())
    byol, paper = results["arms"]["byol"][0], results["arms"]["paper"][0]
    assert 0 < results["free"]["untrained"]["knn"] < results["free"]["raw pixels"]["linear"] <= 100
    assert paper["flops"] / byol["flops"] == pytest.approx(1.75, abs=0.15)
    assert results["arms"]["efficient"][0]["flops"] < paper["flops"]  # twice the epochs, at less cost
    before = (in_tmp / "here/digits-byol-0/encoder.safetensors").stat().st_mtime_ns
    demo.main(["--data", "digits", "--out", "here"])
    assert json.loads((in_tmp / "here/results.json").read_text()) == results
    assert (in_tmp / "here/digits-byol-0/encoder.safetensors").stat().st_mtime_ns == before


def test_files_of_others_are_not_replaced(tmp_path: Path) -> None:
    for text in ('{"knn": {"value": 50.0}}', "[1]", "not JSON", '{"free": {"raw pixels": {"knn": NaN, "linear": 1}}}'):
        (tmp_path / "results.json").write_text(text)
        with pytest.raises(RequestError, match=r"results\.json"):
            demo.run_demo("digits", 1, tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_epochs_to_reach() -> None:
    curve = [{"epoch": e, "knn": k} for e, k in enumerate((20.0, 30.0, 29.0, 35.0))]
    assert demo.epochs_to_reach(curve, 30.0) == 1
    assert demo.epochs_to_reach(curve, 34.0) == 3
    assert demo.epochs_to_reach(curve, 36.0) is None


def test_no_gain_is_reported(capsys: pytest.CaptureFixture) -> None:
    def arm(knn: float) -> dict:
        curve = [{"epoch": 1, "flops": 1, "knn": knn}]
        return {"knn": knn, "linear": knn, "epochs": 1, "seconds": 1.0, "flops": 1.0, "curve": curve}

    demo.print_table({demo.BASE: [arm(30)], demo.EFFICIENT: [arm(29)], demo.PAPER: [arm(31)]}, "cifar10", {})
    text = capsys.readouterr()
    assert "efficient shows no gain: -1.0" in text.err
    assert "the paper's form gains 1.0" in text.err
    assert "never" in text.out


@pytest.mark.long
def test_a_failed_arm_ends_the_demo(
    in_tmp: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(scales.CPU, "lr", 1e30)
    with pytest.raises(SystemExit) as ended:
        demo.main(["--data", "digits", "--out", "here"])
    assert ended.value.code == 1
    assert "not finite" in capsys.readouterr().err.splitlines()[-1]
    with pytest.raises(RequestError, match="seeds= is 0"):
        demo.run_demo("digits", 0, in_tmp)
