"""What `effssl eval` prints."""

from __future__ import annotations

import pytest

import effssl
from effssl.cli import main
from effssl.commands.evaluate import print_baselines
from effssl.data import Data
from effssl.data.digits import open_digits
from effssl.evaluation import cheap_baselines
from effssl.evaluation.score import Score

SMALL = ["small", "--weights", "random", "--image-size", "16", "--data", "digits"]


def test_knn_and_agreement_show_what_costs_nothing_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    for args, shown in (
        (["agreement", *SMALL, "--images", "50"], True),
        (["agreement", *SMALL, "--images", "50", "--no-baselines"], False),
        (["agreement", "pixels", "--data", "digits", "--images", "50"], False),  # it is one itself
    ):
        main(["eval", *args])
        said = capsys.readouterr().out
        for name in ("untrained", "patches-100", "pixels "):
            assert (f"│ {name}" in said) == shown
    main(["eval", "clusters", *SMALL])
    assert "--baselines shows pixels, k-means patches and the untrained network" in capsys.readouterr().out


def test_baselines_are_unasked_only_where_they_are_cheap() -> None:
    encoder, data = effssl.load("small", weights="random"), open_digits("digits", "auto")
    assert isinstance(data, Data)

    def score(train: int, test: int) -> Score:
        return Score("knn", 50.0, source={"train_images": train, "test_images": test})

    assert cheap_baselines("knn", encoder, data, score(11_000, 1_000), 5.0)
    assert not cheap_baselines("knn", encoder, data, score(11_000, 1_001), 5.0)
    assert not cheap_baselines("knn", encoder, data, score(11_000, 1_000), 50.0)  # each of them takes as long
    assert cheap_baselines("agreement", encoder, data, score(50_000, 0), 5.0)
    assert not cheap_baselines("linear", encoder, data, score(100, 10), 1.0)


def test_baselines_stand_beside_an_encoder_in_everything_that_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    ours = Score("retrieval", 21.5, "mAP", {}, {"precision_at_5": 31.04, "per_class": {"cat": 1.0}})
    pixels = Score("retrieval", 6.75, "mAP", {}, {"precision_at_5": 9.5, "per_class": {"cat": 1.0}})
    print_baselines({"runs/a": ours, "pixels": pixels})
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    assert cells == [["runs/a", "21.50 %", "31.04 %"], ["pixels", "6.75 %", "9.50 %"]]
    assert "precision at 5" in " ".join(lines)
    assert "cat" not in " ".join(lines)
