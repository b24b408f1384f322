"""Curves, scores and settings of a run folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from effssl.report.comparison import compare
from effssl.report.page import as_block
from effssl.report.summary import curves, summarize
from effssl.verbs import Run


def test_folders_are_not_published(digits: Run, tmp_path: Path) -> None:
    run = Run(shutil.copytree(digits.folder, tmp_path / "run"))
    results = run.results()
    results["transfer@/some/place/pets"] = results["knn"] | {"constants": {"split": "/some/place/lists/train.txt"}}
    run.results_path.write_text(json.dumps(results))
    run.config_path.write_text(run.config_path.read_text().replace("saliency: ''", "saliency: /some/place/maps.npz"))
    found = summarize(run)
    assert found["scores"][-1]["name"] == "transfer@pets, test"
    assert found["scores"][-1]["how"].endswith("; split train.txt")
    assert "bank train, no augmentation" in found["scores"][-2]["constants"]
    assert (found["about"]["data"], found["config"]["data"]) == ("digits.npz", "digits.npz")
    assert found["config"]["augment.saliency"] == "maps.npz"
    assert "/some/place" not in json.dumps(found)
    assert str(tmp_path) not in json.dumps(found)


def test_versions_that_are_no_mapping_are_left_out(digits: Run, tmp_path: Path) -> None:
    run = Run(shutil.copytree(digits.folder, tmp_path / "run"))
    assert summarize(run)["versions"]["torch"]
    run.config_path.write_text(run.config_path.read_text().partition("versions:")[0] + "versions: 3\n")
    assert summarize(run)["versions"] == {}


def test_values_that_are_not_json_are_omitted() -> None:
    found = curves([{"epoch": 1, "loss": float("nan"), "own": 1.0}, {"epoch": 2, "loss": 2.0, "verdict": "x"}])
    assert found["columns"] == {"loss": [None, 2.0], "own": [1.0, None]}
    assert "NaN" not in as_block(found)


@pytest.fixture
def unlabelled(digits: Run, tmp_path: Path) -> Run:
    """A run that measured agreement in place of kNN, on 200 images."""
    run = Run(shutil.copytree(digits.folder, tmp_path / "unlabelled"))
    lines = [{key: value for key, value in line.items() if key != "knn"} for line in run.metrics()]
    (run.folder / "metrics.jsonl").write_text(
        "".join(json.dumps(line | {"agreement": 9.0, "sampled": 200}) + "\n" for line in lines)
    )
    return run


def test_agreement_on_other_numbers_of_images_is_not_comparable(unlabelled: Run, tmp_path: Path) -> None:
    """Chance depends on the number, which a time budget decides."""
    more = Run(shutil.copytree(unlabelled.folder, tmp_path / "more"))
    same = Run(shutil.copytree(unlabelled.folder, tmp_path / "same"))
    journal = more.folder / "metrics.jsonl"
    journal.write_text(journal.read_text().replace('"sampled": 200', '"sampled": 900'))

    def comparable(other: Run) -> list[bool]:
        cells = dict(compare([unlabelled, other])["scores"])["agreement of neighbors"]
        return [cell["comparable"] for cell in cells]

    assert comparable(same) == [True, True]
    assert comparable(more) == [False, False]


def test_an_evaluated_agreement_says_on_which_images_it_was_measured(unlabelled: Run, digits: Run) -> None:
    for run, twice in (unlabelled, True), (digits, False):
        run.evaluate("agreement", images=50)
        score = summarize(run)["scores"][-1]
        assert score["name"] == "agreement of neighbors images=50, effssl eval"
        assert score["how"].startswith("50 training images of digits")
        assert ("may differ from that of training" in score["how"]) == twice


def test_every_task_has_its_chance_level_and_its_score(digits: Run, tmp_path: Path) -> None:
    run = Run(shutil.copytree(digits.folder, tmp_path / "run"))
    run.log({"epoch": 3, "accuracy/puzzle": 0.5, "chance/puzzle": 0.01, "accuracy/labels": 0.9})
    found = summarize(run)
    (chart,) = [chart for chart in found["curves"]["charts"] if chart["title"] == "Task accuracy"]
    assert chart["keys"] == ["accuracy/rotation", "accuracy/puzzle", "accuracy/labels"]
    assert chart["chance"] == {"accuracy/rotation": 0.25, "accuracy/puzzle": 0.01}
    assert not any(key.startswith("chance/") for key in found["curves"]["columns"])
    scores = {score["name"]: (score["value"], score["how"]) for score in found["scores"]}
    assert scores["puzzle accuracy"] == (50.0, "training views; chance 1 %")
    assert scores["labels accuracy"] == (90.0, "training views")
    assert "chance 25 %" in scores["rotation accuracy"][1]
