"""Several runs on one page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from effssl.report import write_report
from effssl.runtime.errors import RequestError
from effssl.verbs import Run
from tests.report.conftest import data_of


def test_runs_side_by_side(digits: Run, plain: Run, desk: Path) -> None:
    path = write_report([digits.folder, plain.folder], desk / "both.html")
    found = data_of(path)
    differ = dict(found["differences"])
    assert differ["objective"] == ["byol+rotation", "byol"]
    assert differ["lr"][1] == "0.01"
    assert not any(key.startswith("rotation.") for key in differ)  # one of the runs does not have the task
    assert "batch_size" not in differ
    assert "data" not in differ
    moved = Run(shutil.copytree(plain.folder, desk / "moved"))
    settings = moved.config_path.read_text()
    moved.config_path.write_text(settings.replace(str(desk), "/some/place/other"))
    elsewhere = data_of(write_report([digits.folder, plain.folder, moved.folder], desk / "three.html"))
    places = [f"{desk.name}/digits.npz", f"{desk.name}/digits.npz", "other/digits.npz"]
    assert dict(elsewhere["differences"])["data"] == places
    scores = dict(found["scores"])
    assert scores["kNN, test"][1] is None  # measured of one run only
    assert not scores["kNN, test"][0]["best"]
    assert sum(cell["best"] for cell in scores["kNN, validation"]) >= 1  # the same images
    assert [run["name"] for run in found["runs"]] == ["digits", "plain"]
    with pytest.raises(RequestError, match="given twice"):
        write_report([digits.folder, digits.folder])


def test_the_best_score_is_one_of_the_same_protocol(digits: Run, tmp_path: Path) -> None:
    runs = [Run(shutil.copytree(digits.folder, tmp_path / name)) for name in ("a", "b")]
    for run, lr in zip(runs, (0.1, 0.5), strict=True):
        run.linear(epochs=1)
        results = run.results()  # the rate is chosen: another one is no other measurement
        results["linear epochs=1"]["constants"]["lr"] = lr
        results["linear epochs=1"]["value"] = 100 * lr
        run.results_path.write_text(json.dumps(results))

    def cells() -> list[dict]:
        path = write_report([run.folder for run in runs], tmp_path / "both.html")
        found = dict(data_of(path)["scores"])["linear epochs=1, test"]
        row = path.read_text().split('<th scope="row">linear epochs=1')[1].split("</tr>")[0]
        assert row.count("★") == sum(cell["best"] for cell in found)
        return found

    assert [cell["best"] for cell in cells()] == [False, True]
    assert "100 test images of digits; setting cached" in cells()[0]["how"]
    assert "lr_grid" in cells()[0]["how"]
    whole = runs[1].results()
    for part, key, value in (("constants", "batch", 7), ("source", "test_fingerprint", "0" * 16)):
        other = json.loads(json.dumps(whole))
        other["linear epochs=1"][part][key] = value
        runs[1].results_path.write_text(json.dumps(other))
        assert [(cell["best"], cell["comparable"]) for cell in cells()] == [(False, False)] * 2
