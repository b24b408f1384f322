"""The last line of `effssl pretrain`."""

from __future__ import annotations

from pathlib import Path

import pytest

from effssl.commands.pretrain import last_line
from effssl.config import Config
from effssl.training.verdict import Moment, Reference, Representation, verdict
from effssl.verbs import Run

START, BETTER = Representation(0.3, 0.3, 90, 80, 50.0), Representation(0.6, 0.7, 70, 40, 60.0)
COLLAPSED = Representation(0.01, 0.01, 2, 2, 20.0)


@pytest.mark.parametrize(
    ("last", "pixels", "ends"),
    [
        (BETTER, 55.0, "next: effssl eval knn"),
        (BETTER, 80.0, "next: train longer (--epochs, --budget), or with larger views (--image-size)"),
        (COLLAPSED, 55.0, "next: use a smaller --lr, a larger --batch-size or a longer warm-up"),
    ],
)
def test_it_ends_with_what_to_do(last: Representation, pixels: float, ends: str, tmp_path: Path) -> None:
    word, why = verdict([START, last], [], Reference(baselines={"pixels": pixels}), Moment())
    run = Run.create(tmp_path / "run", Config(data="digits"))
    run.log({"epoch": 0, "knn": START.knn, "baseline/pixels": pixels, "baseline/chance": 10.0})
    run.log({"epoch": 1, "knn": last.knn, "verdict": word, "why": why})
    folder, judged, todo = last_line(run)
    assert folder == f"done: {run.folder}"
    assert judged.startswith(f"{word}: kNN {last.knn:.1f} % (untrained network 50.0, raw pixels {pixels:.1f}")
    assert todo.startswith(ends)
    assert "What to do" not in judged


def test_without_scores_it_says_why(tmp_path: Path) -> None:
    word, why = verdict([START, COLLAPSED], [])
    run = Run.create(tmp_path / "run", Config(data="digits"))
    run.log({"epoch": 1, "verdict": word, "why": why})
    assert last_line(run)[1] == "collapsing: all images get nearly the same features (spread 0.010 of 1)"
