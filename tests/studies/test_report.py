"""Results of a study stand beside the published ones, in a table, a page and a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from effssl.cli import main
from effssl.commands.study import StudyRun, published_command
from effssl.runtime.errors import RequestError
from effssl.studies import load
from effssl.studies.plan import Setup, plan_runs
from effssl.studies.report import base_of, markdown, show, verdicts, whole_table, write
from effssl.studies.results import StudyResults, environment, read_results
from effssl.studies.runner import ArmResult
from effssl.studies.scales import Sources


def results_of(name: str, out: Path, scale: str = "cpu", seeds: int = 1) -> StudyResults:
    """Invented values: each arm has one point of kNN and two of linear accuracy more than the one before."""
    study = load(name)
    runs = plan_runs(study, Setup(scale, seeds, out))
    results = []
    for i, run in enumerate(runs):
        arm, noise = i // seeds, (0.0, 0.1, 0.05)[(i + i // seeds) % 3] if seeds > 1 else 0.0
        values = {"knn": 40.0 + arm + noise, "linear": 50.0 + 2 * arm + noise}
        results.append(ArmResult(run, values, {}, 1.0, 2e12))
    return StudyResults(study, scale, results, f"effssl study run {name}", environment(1))


def test_gains_stand_beside_the_published_ones(tmp_path: Path) -> None:
    text = markdown(results_of("E14", tmp_path))
    assert "+1.00 / +3.24 / -2.24" in text  # kNN: 86.56 → 89.80 in the paper, 40 → 41 here
    assert "+2.00 / +2.59 / -0.59" in text


def test_an_arm_is_compared_with_the_same_settings_without_the_task() -> None:
    arms = load("E14").arms
    assert {arm.name: base.name for arm in arms if (base := base_of(arm, arms))} == {
        "BYOL+R": "BYOL",
        "BYOL+R, no jitter": "BYOL, no jitter",
    }


def test_empty_columns_are_left_out(tmp_path: Path) -> None:
    head, rows = whole_table(results_of("C02", tmp_path))
    assert "published" not in head
    assert all(len(row) == len(head) for row in rows)


def test_files_of_a_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = results_of("E07", tmp_path)
    folder = write(found, tmp_path / "E07-cpu")
    assert {path.name for path in folder.iterdir()} == {"README.md", "results.json", "report.html", "figure.png"}
    stored = json.loads((folder / "results.json").read_text())
    assert [run["values"] for run in stored["runs"]] == [result.values for result in found.results]
    assert "(interpolated)" in " ".join(stored["remarks"])
    show(found.study, folder)
    assert "| BYOL, 100 epochs |" in capsys.readouterr().out
    with pytest.raises(RequestError, match="has no results"):
        show(found.study, tmp_path / "elsewhere")


def test_one_seed_decides_no_claim_and_three_do(tmp_path: Path) -> None:
    one = verdicts(results_of("E14", tmp_path))
    assert [(judged.verdict, judged.why) for judged in one] == [("not decided", "one seed")]
    three = verdicts(results_of("E05", tmp_path, seeds=3))
    assert three[0].verdict == "held"
    assert three[0].p is not None
    assert three[1].verdict == "no verdict"  # rot f has no values
    assert "| held | +4.00 (+3.78 to +4.22) |" in markdown(results_of("E05", tmp_path, seeds=3))


def test_smoke_scale_has_no_verdicts(tmp_path: Path) -> None:
    found = results_of("E07", tmp_path, "smoke", 3)
    assert verdicts(found) == []
    assert "claim" not in markdown(found)
    assert "reaches the final value" not in markdown(found)


def test_claims_about_other_data_have_no_verdict(tmp_path: Path) -> None:
    judged = {item.claim.text: item for item in verdicts(results_of("E06", tmp_path, seeds=3))}
    assert judged["rotation improves BYOL (kNN)"].verdict == "held"
    assert judged["rotation improves BYOL, C100 (kNN)"].verdict == "no verdict"
    shared = verdicts(results_of("E13", tmp_path, seeds=3))
    assert {(item.verdict, item.why) for item in shared} == {("no verdict", "cifar10 in place of cifar100")}


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = results_of("E06", tmp_path, seeds=3)
    folder = write(found, tmp_path / "E06-cpu")
    assert markdown(read_results(found.study, folder)) == markdown(found)
    stored = json.loads((folder / "results.json").read_text())
    assert {"commit", "versions", "date", "machine", "threads", "precision"} <= stored.keys()


def test_a_page_is_built_from_published_results(tmp_path: Path) -> None:
    """What is in the repository is results.json; its page is built on demand."""
    folder = Path(__file__).parents[2] / "docs" / "results" / "E06-cpu"
    main(["report", str(folder), "--out", str(tmp_path / "page.html")])
    page = (tmp_path / "page.html").read_text()
    assert "SimSiam+R" in page
    assert "rotation improves BYOL (kNN)" in page


def test_the_published_command_names_no_directories() -> None:
    sets = "flowers=/some/place/flowers,cifar10=cifar10"
    request = StudyRun("e17", scale="cpu", images="/some/place/photos/", sets=sets)
    sources = Sources(request.images, request.voc, request.sets, request.maps)
    assert published_command("E17", request, sources) == (
        "effssl study run E17 --scale cpu --seeds 1 --jobs 2 --images photos --sets flowers=flowers,cifar10=cifar10"
    )
