"""The page of a study."""

from __future__ import annotations

from pathlib import Path

import pytest

from effssl.report import write_report
from effssl.runtime.errors import RequestError
from tests.report.conftest import data_of, study_folder


def test_results_of_arms_beside_the_published_ones(tmp_path: Path) -> None:
    folder = study_folder(tmp_path / "E14", {"base": (None, [40.0, 41.0]), "with task": (None, [50.0])})
    found = data_of(write_report(folder))
    base, with_task = found["measures"][0]["arms"]
    assert (base["ours"], base["published"], base["seeds"]) == (40.5, 42.0, 2)
    assert base["spread"] == pytest.approx(0.5**0.5)
    assert base["tflop"] == 2.0
    assert (with_task["ours"], with_task["spread"]) == (50.0, 0.0)
    assert found["claims"] == [{"claim": "the task helps", "verdict": "held"}]
    assert found["figure"] == ""


def test_other_files_are_refused(tmp_path: Path) -> None:
    folder = study_folder(tmp_path / "E14", {"base": (None, [40.0])})
    for content in ("[]", "{}"):
        (folder / "results.json").write_text(content)
        with pytest.raises(RequestError, match="neither a run folder nor a results folder"):
            write_report(folder)
    (folder / "results.json").write_text("{")
    with pytest.raises(RequestError, match=r"results\.json cannot be read"):
        write_report(folder)
