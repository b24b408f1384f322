"""What `effssl eval` prints."""

from __future__ import annotations

import pytest

from effssl.commands.evaluate import print_baselines
from effssl.evaluation.score import Score


def test_baselines_stand_beside_an_encoder_in_everything_that_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    ours = Score("retrieval", 21.5, "mAP", {}, {"precision_at_5": 31.04, "per_class": {"cat": 1.0}})
    pixels = Score("retrieval", 6.75, "mAP", {}, {"precision_at_5": 9.5, "per_class": {"cat": 1.0}})
    print_baselines({"runs/a": ours, "pixels": pixels})
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    assert cells == [["runs/a", "21.50 %", "31.04 %"], ["pixels", "6.75 %", "9.50 %"]]
    assert "precision at 5" in " ".join(lines)
    assert "cat" not in " ".join(lines)
