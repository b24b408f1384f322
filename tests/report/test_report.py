"""What a report holds, for every kind of run, and what it refuses."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image
from torch import Tensor

import effssl
from effssl.cli import main
from effssl.report import gather, report_finished_run, write_report
from effssl.report.page import render
from effssl.runtime.errors import RequestError
from effssl.verbs import Run
from tests.report.conftest import SHORT, data_of


def test_new_scores_are_added_to_the_report(digits: Run, written: Path, tmp_path: Path) -> None:
    run = Run(shutil.copytree(digits.folder, tmp_path / "run"))
    before = data_of(run.folder / "report.html")
    score = run.evaluate("knn", k=3)
    after = data_of(run.folder / "report.html")
    assert after["scores"][-1]["value"] == score.value
    assert after["map"] == before["map"]
    (run.folder / "report.html").write_text("somebody's own page")
    run.evaluate("knn", k=4)
    assert (run.folder / "report.html").read_text() == "somebody's own page"


def test_a_report_of_an_earlier_epoch_is_not_mixed_with_later_scores(
    digits: Run, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = Run(shutil.copytree(digits.folder, tmp_path / "run"))
    weights, lines = run.encoder_path.read_bytes(), run.metrics_path.read_text()
    for kept in (lines, "".join(lines.splitlines(keepends=True)[:-1])):
        run.metrics_path.write_text(kept)
        run.encoder_path.unlink()
        before = run.report(images=0).read_bytes()
        run.metrics_path.write_text(lines)  # the run continued
        run.encoder_path.write_bytes(weights)
        run.evaluate("knn", k=3)
        assert (run.folder / "report.html").read_bytes() == before
        assert "update it with effssl report" in capsys.readouterr().err


def test_a_comparison_in_the_place_of_a_report_stays(digits: Run, plain: Run, tmp_path: Path) -> None:
    run = Run(shutil.copytree(digits.folder, tmp_path / "run"))
    page = write_report([run.folder, plain.folder], run.folder / "report.html")
    before = page.read_bytes()
    run.evaluate("knn", k=3)
    assert page.read_bytes() == before


def test_everything_of_a_run(digits: Run, written: Path) -> None:
    found, text = data_of(written), written.read_text()
    assert written == digits.folder / "report.html"
    assert [chart["title"] for chart in found["curves"]["charts"]][:6] == [
        "Loss", "kNN accuracy", "Task accuracy", "Feature std", "Effective rank", "Learning rate",
    ]  # fmt: skip
    assert found["curves"]["columns"]["loss/rotation"][1:] == [line["loss/rotation"] for line in digits.metrics()[1:]]
    assert found["curves"]["columns"]["loss"][0] is None  # the untrained network has no loss
    free = ("untrained network", "raw pixels", "k-means patches", "chance")
    costs_nothing = {f"kNN of {name}, validation" for name in free}
    assert found["standing"]["scores"].keys() == {"this run", *free}
    assert found["standing"]["scores"]["this run"] == digits.metrics()[-1]["knn"]
    head = text.split("<main>")[0]
    assert head.index("Is it any good?") < head.index('class="cards"')
    assert all(head.count(f'<th scope="row">{name}</th>') == 1 for name in found["standing"]["scores"])
    examples = found["map"]["examples"]
    assert len(examples) == 6
    for one in examples:
        assert len(one["run"]) == len(one["pixels"]) == 5
        assert one["query"] not in one["run"] + one["pixels"]
    assert {score["name"] for score in found["scores"]} == {
        "kNN, validation", "rotation accuracy", "kNN, test", *costs_nothing,
    }  # fmt: skip
    views = dict(zip(found["views"]["columns"], found["views"]["captions"], strict=True))
    assert {"image", "large 1", "rotated 1", "rotated 2"} <= views.keys()
    assert set(views["large 1"]) == {""}
    assert all(re.fullmatch(r"(0|90|180|270)°", caption) for caption in views["rotated 2"])
    (task,) = found["tasks"]
    assert (task["name"], len(task["captions"])) == ("rotation", 24)
    assert all(re.match(r"(0|90|180|270)° (✓|✗ (0|90|180|270)°)$", caption) for caption in task["captions"])
    assert len(found["map"]["names"]) == 200
    assert sum(found["map"]["held"]) == len(digits.data().validation()[1])  # there are fewer than half of 200
    assert list(found["map"]["maps"]) == ["t-SNE", "PCA"]
    assert "own head" in task["confusion"]["how"]
    assert sum(count for _, _, count in task["confusion"]["cells"]) == 2 * 256  # two rotated views of each image
    assert [c["chance"] for c in found["curves"]["charts"] if c["chance"]] == [{"accuracy/rotation": 0.25}]
    assert 'effssl.load("path/to/digits")  # this run\'s folder' in text
    assert not re.search(r"\d %", text.split("<main>")[0])  # no line break before a percent sign
    assert str(digits.folder.parent) not in text  # pages are shared, folders stay private
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")  # nothing is loaded


def test_a_run_writes_its_report_at_the_end(desk: Path, digits: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFFSSL_REPORT", "on")
    with_it = effssl.pretrain("digits", "byol", subset=64, out=desk / "with", **SHORT)
    assert data_of(with_it.folder / "report.html")["finished"]
    without = effssl.pretrain("digits", "byol", subset=64, out=desk / "without", report=False, **SHORT)
    assert not (without.folder / "report.html").exists()
    assert with_it.encoder_path.read_bytes() == without.encoder_path.read_bytes()  # drawing changes nothing of the run


def test_a_run_that_was_killed_before_its_report_gets_one(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = effssl.pretrain("digits", "byol", subset=64, out=desk / "killed", **SHORT)
    leftover = run.folder / ".report.html.1.partial"
    leftover.write_text("<ht")
    monkeypatch.setenv("EFFSSL_REPORT", "on")
    effssl.pretrain("digits", "byol", subset=64, out=run.folder, resume="auto", **SHORT)
    assert data_of(run.folder / "report.html")["finished"]
    assert not leftover.exists()
    written = (run.folder / "report.html").stat().st_mtime_ns
    effssl.pretrain("digits", "byol", subset=64, out=run.folder, resume="auto", **SHORT)
    assert (run.folder / "report.html").stat().st_mtime_ns == written


def test_a_failing_report_does_not_fail_the_run(digits: Run, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    folder = tmp_path / "run"
    shutil.copytree(digits.folder, folder, ignore=shutil.ignore_patterns("report.html"))
    (folder / "report.html").mkdir()  # in the way
    report_finished_run(Run(folder), digits.data(), quiet=True)
    output = capfd.readouterr().err
    assert output.startswith("the report could not be written (RequestError")  # and no progress
    assert Run(folder).finished


def test_an_unfinished_run(digits: Run, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    shutil.copytree(digits.folder, folder)
    (folder / "encoder.safetensors").unlink()
    found = gather(Run(folder), 60)
    assert "not finished: 2 of 2 epochs" in found["notes"][0]
    assert found["map"]  # the encoder of its last checkpoint
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        (folder / name).unlink()
    found = gather(Run(folder), 60)
    assert found["views"]
    assert found["map"] is None
    (task,) = found["tasks"]
    assert not task["predicted"]  # the predictions of an untrained head mean nothing
    assert task["confusion"] is None
    (folder / "metrics.jsonl").unlink()
    text = render(gather(Run(folder), 0)).decode()
    assert "too early to tell" in text


def test_photographs_without_labels(photos: Tensor, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for i, pixels in enumerate(photos[:24]):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / f"photos/{i}.jpg")
    Path(os.fsdecode(os.fsencode(tmp_path / "photos/") + b"/\xff.jpg")).write_bytes(
        (tmp_path / "photos/3.jpg").read_bytes()
    )
    run = effssl.pretrain(str(tmp_path / "photos"), "simsiam", image_size=24, workers=0, out=tmp_path / "run", **SHORT)
    found = data_of(run.report())
    assert found["map"]["labels"] is None
    assert found["map"]["probe"] is None
    assert len(found["map"]["names"]) == 25
    assert "photos/0.jpg" in found["map"]["names"]
    assert found["map"]["gallery"]["some"]
    shutil.copy(tmp_path / "photos/3.jpg", tmp_path / "photos/00.jpg")  # the run did not see this one
    assert gather(run, 60)["map"]["names"] == found["map"]["names"]
    assert gather(run, 60)["views"] == found["views"]
    (tmp_path / "photos/0.jpg").unlink()
    assert gather(run, 60)["map"]["names"] == found["map"]["names"][1:]
    shutil.rmtree(tmp_path / "photos")
    output = gather(run)["notes"][0]
    assert "Images are not shown: no data set or folder named 'photos'" in output


def test_changed_classes_are_noted(photos: Tensor, tmp_path: Path) -> None:
    for i, pixels in enumerate(photos[:24]):
        (tmp_path / f"photos/{i % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / f"photos/{i % 2}/{i}.png")
    run = effssl.pretrain(str(tmp_path / "photos"), "supervised", labels="folders", image_size=24, workers=0,
                          out=tmp_path / "run", **SHORT)  # fmt: skip
    shutil.copytree(tmp_path / "photos/1", tmp_path / "photos/2")
    found = data_of(run.report(images=20))
    assert found["notes"] == [
        "Images are not shown: the classes of the images have changed since the run began; train a new run."
    ]


def test_other_files_are_not_overwritten(digits: Run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    mine = tmp_path / "mine.html"
    mine.write_text("my own page")
    with pytest.raises(RequestError, match="not a report of effssl"):
        write_report(digits.folder, mine, images=0)
    assert mine.read_text() == "my own page"
    slow = Run(shutil.copytree(digits.folder, tmp_path / "slow"))
    slow.metrics_path.write_text("nobody gets to read this\n")
    with pytest.raises(RequestError, match="not a report of effssl"):
        write_report(slow.folder, mine)
    page = tmp_path / "page.html"
    write_report(digits.folder, page, images=0)
    with pytest.raises(RequestError, match="not a regular file"):
        write_report(digits.folder, "/dev/null", images=0)
    main(["report", str(digits.folder), "--out", str(page), "--images", "20"])  # a report may be replaced
    assert "page.html" in capsys.readouterr().out
    with pytest.raises(RequestError, match="an existing folder"):
        write_report(digits.folder, tmp_path / "no/where.html", images=0)
    with pytest.raises(RequestError, match="is not writable"):
        write_report(slow.folder, "/proc/page.html")
    with pytest.raises(RequestError, match="between 0"):
        write_report(digits.folder, images=50_000)
    with pytest.raises(RequestError, match="no run folder"):
        write_report(tmp_path / "nothing")
