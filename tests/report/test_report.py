"""What a report holds, for every kind of run, and what it refuses."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import effssl
from effssl.cli import main
from effssl.data import ArrayImages
from effssl.report import gather, write_report
from effssl.report.embedding import cells, gallery, positions, probe
from effssl.report.facts import curves, facts
from effssl.report.page import as_block, page
from effssl.report.page import data_of as read_back
from effssl.report.sample import Sample, draw, sheet
from effssl.report.views import batches, objective_of, plan_of
from effssl.run import Run
from effssl.runtime.errors import RequestError
from effssl.studies import load
from effssl.studies.report import write
from effssl.studies.runner import Outcome, Sources, jobs_of
from effssl.training.loop import Trainer
from effssl.training.pretraining import draw_report

QUICK = {"epochs": 1, "batch_size": 8, "quiet": True}


def data_of(file: Path) -> dict:
    found = read_back(file.read_text())
    assert found is not None
    return found


def test_new_scores_find_their_way_into_the_report(digits: Run, drawn: Path, tmp_path: Path) -> None:
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
        run.metrics_path.write_text(lines)  # the run went on
        run.encoder_path.write_bytes(weights)
        run.evaluate("knn", k=3)
        assert (run.folder / "report.html").read_bytes() == before
        assert "draws it anew" in capsys.readouterr().err


def test_a_comparison_in_the_place_of_a_report_stays(digits: Run, plain: Run, tmp_path: Path) -> None:
    run = Run(shutil.copytree(digits.folder, tmp_path / "run"))
    page = write_report([run.folder, plain.folder], run.folder / "report.html")
    before = page.read_bytes()
    run.evaluate("knn", k=3)
    assert page.read_bytes() == before


def test_everything_of_a_run(digits: Run, drawn: Path) -> None:
    found, text = data_of(drawn), drawn.read_text()
    assert drawn == digits.folder / "report.html"
    assert [chart["title"] for chart in found["curves"]["charts"]][:6] == [
        "Loss", "kNN accuracy", "Rotation accuracy", "Feature std", "Effective rank", "Learning rate",
    ]  # fmt: skip
    assert found["curves"]["columns"]["loss/rotation"][1:] == [line["loss/rotation"] for line in digits.metrics()[1:]]
    assert found["curves"]["columns"]["loss"][0] is None  # the untrained network has no loss
    assert {score["name"] for score in found["scores"]} == {"kNN, validation", "rotation accuracy", "kNN, test"}
    assert found["views"]["columns"] == ["image", "view 1", "view 2", "rotated 1", "rotated 2"]
    assert all(re.match(r"(0|90|180|270)° (✓|✗ (0|90|180|270)°)$", one) for one in found["views"]["captions"][3])
    assert len(found["map"]["names"]) == 200
    assert sum(found["map"]["held"]) == len(digits.data().validation()[1])  # there are fewer than half of 200
    assert list(found["map"]["maps"]) == ["t-SNE", "PCA"]
    assert "own head" in found["rotation"]["how"]
    assert sum(count for _, _, count in found["rotation"]["cells"]) == 2 * 256  # two rotated views of each image
    assert [c["title"] for c in found["curves"]["charts"] if c["chance"] == 0.25] == ["Rotation accuracy"]
    assert 'effssl.load("path/to/digits")  # this run\'s folder' in text
    assert not re.search(r"\d %", text.split("<main>")[0])  # a line does not end before a percent sign
    assert str(digits.folder.parent) not in text  # pages are mailed: where things lie is nobody's business
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")  # nothing is loaded from anywhere


def test_class_names_cannot_break_the_page(drawn: Path) -> None:
    text = drawn.read_text()
    assert text.count("<script") == 2
    assert "</script><script>window" not in text
    assert any("</script>" in name for name in data_of(drawn)["map"]["classes"])


def test_neighbors_are_the_nearest(digits: Run, drawn: Path) -> None:
    found = data_of(drawn)["map"]
    encoder = digits.encoder()
    images = draw(digits.data(), encoder, 200).images
    with torch.inference_mode():
        h = torch.nn.functional.normalize(encoder(images.pixels), dim=1)
    similarity = (h @ h.T).fill_diagonal_(-2)
    for row in (0, 17, 99):
        expected = similarity[row].topk(12)
        ours = similarity[row, found["neighbors"][row]]
        assert torch.allclose(ours, expected.values, atol=1e-5)
        assert row not in found["neighbors"][row]
        assert found["similarity"][row] == [round(100 * s) for s in expected.values.tolist()]


def test_rotated_views_are_those_of_training(digits: Run) -> None:
    data, cpu = digits.data(), torch.device("cpu")
    objective = objective_of(digits, data, None, cpu)
    seen = batches(digits, data.train, objective, cpu)[0]
    trained = next(iter(Trainer(plan_of(digits), data, cpu).loader.epoch(0)))
    assert torch.equal(seen.index, trained.index)
    assert torch.equal(seen.large[1], trained.large[1])


def test_views_that_grow_are_shown_as_small_as_they_were(desk: Path, digits: Run) -> None:
    run = effssl.pretrain("digits", "byol", subset=64, schedule={"grow_from": 0.5}, out=desk / "growing", **QUICK)
    data, cpu = run.data(), torch.device("cpu")
    seen = batches(run, data.train, objective_of(run, data, None, cpu), cpu)
    trained = Trainer(plan_of(run), data, cpu).loader.epoch(0)
    assert seen[0].large[0].shape[-1] < run.config.image_size
    for ours, theirs in zip(seen, trained, strict=True):
        assert torch.equal(ours.large[1], theirs.large[1])
        assert ours.done == theirs.done


def test_a_run_draws_its_report_at_the_end(desk: Path, digits: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFFSSL_REPORT", "on")
    with_it = effssl.pretrain("digits", "byol", subset=64, out=desk / "with", **QUICK)
    assert data_of(with_it.folder / "report.html")["finished"]
    without = effssl.pretrain("digits", "byol", subset=64, out=desk / "without", report=False, **QUICK)
    assert not (without.folder / "report.html").exists()
    assert with_it.encoder_path.read_bytes() == without.encoder_path.read_bytes()  # drawing changes nothing of the run


def test_a_report_that_fails_loses_no_run(digits: Run, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    folder = tmp_path / "run"
    shutil.copytree(digits.folder, folder, ignore=shutil.ignore_patterns("report.html"))
    (folder / "report.html").mkdir()  # in the way
    draw_report(Run(folder), digits.data(), quiet=True)
    said = capfd.readouterr().err
    assert said.startswith("the report could not be drawn (IsADirectoryError")  # and nothing else: it is quiet
    assert Run(folder).finished


def test_an_unfinished_run_is_shown_as_such(digits: Run, tmp_path: Path) -> None:
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
    assert found["rotation"] is None  # an untrained head says nothing
    (folder / "metrics.jsonl").unlink()
    text = page(gather(Run(folder), 0)).decode()
    assert "too early to tell" in text


def test_photographs_without_labels(photos: Tensor, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for i, pixels in enumerate(photos[:24]):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / f"photos/{i}.jpg")
    Path(os.fsdecode(os.fsencode(tmp_path / "photos/") + b"/\xff.jpg")).write_bytes(
        (tmp_path / "photos/3.jpg").read_bytes()
    )
    run = effssl.pretrain(str(tmp_path / "photos"), "simsiam", image_size=24, workers=0, out=tmp_path / "run", **QUICK)
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
    said = gather(run)["notes"][0]
    assert "Images are not shown: no data set or folder named 'photos'" in said


def test_classes_that_changed_are_said(photos: Tensor, tmp_path: Path) -> None:
    for i, pixels in enumerate(photos[:24]):
        (tmp_path / f"photos/{i % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / f"photos/{i % 2}/{i}.png")
    run = effssl.pretrain(str(tmp_path / "photos"), "supervised", labels="folders", image_size=24, workers=0,
                          out=tmp_path / "run", **QUICK)  # fmt: skip
    shutil.copytree(tmp_path / "photos/1", tmp_path / "photos/2")
    found = data_of(run.report(images=20))
    assert found["notes"] == [
        "Images are not shown: the classes of the images have changed since the run began, which run cannot follow."
    ]


@pytest.mark.parametrize(
    ("objective", "settings", "columns", "caption"),
    [
        ("rotation", {}, 6, r"0° [✓✗]"),  # alone it sees all four turns
        ("byol+rotation", {"rotation": {"views": "given"}, "augment": {"rotate": True}}, 3, r"\d+°$"),
        ("byol+rotation", {"rotation": {"share": 0.5}}, 5, r"$"),  # the first image is not rotated
    ],
)
def test_every_form_of_the_task(
    objective: str, settings: dict, columns: int, caption: str, desk: Path, digits: Run
) -> None:
    out = desk / f"{objective}-{columns}"
    run = effssl.pretrain(str(desk / "digits.npz"), objective, subset=64, out=out, **QUICK, **settings)
    found = gather(run, 30)
    assert len(found["views"]["columns"]) == columns
    place = 2 if columns == 6 else 1 if columns == 3 else 3
    assert re.match(caption, found["views"]["captions"][place][0])
    share = settings.get("rotation", {}).get("share", 1)
    turns = 4 if objective == "rotation" else 2
    assert sum(count for _, _, count in found["rotation"]["cells"]) == 64 * share * turns


def test_without_a_head_a_probe_tells_rotations_apart(desk: Path, digits: Run) -> None:
    run = effssl.pretrain(str(desk / "digits.npz"), "byol+rotation", subset=96, rotation={"form": "supcon"},
                          out=desk / "headless", **QUICK)  # fmt: skip
    found = gather(run, 80)
    assert "quick linear probe" in found["rotation"]["how"]
    assert found["rotation"]["accuracy"] > 40  # digits can be told by a line


def test_runs_side_by_side(digits: Run, plain: Run, desk: Path) -> None:
    made = write_report([digits.folder, plain.folder], desk / "both.html")
    found = data_of(made)
    differ = dict(found["differences"])
    assert differ["objective"] == ["byol+rotation", "byol"]
    assert differ["lr"][1] == "0.01"
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


def test_the_best_is_among_scores_that_were_measured_alike(digits: Run, tmp_path: Path) -> None:
    runs = [Run(shutil.copytree(digits.folder, tmp_path / name)) for name in ("a", "b")]
    for run, lr in zip(runs, (0.1, 0.5), strict=True):
        run.linear(epochs=1)
        results = run.results()  # the rate is chosen: another one is no other measurement
        results["linear epochs=1"]["constants"]["lr"] = lr
        results["linear epochs=1"]["value"] = 100 * lr
        run.results_path.write_text(json.dumps(results))

    def cells() -> list[dict]:
        made = write_report([run.folder for run in runs], tmp_path / "both.html")
        found = dict(data_of(made)["scores"])["linear epochs=1, test"]
        row = made.read_text().split('<th scope="row">linear epochs=1')[1].split("</tr>")[0]
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
        assert [(cell["best"], cell["alike"]) for cell in cells()] == [(False, False)] * 2


def test_a_study(tmp_path: Path) -> None:
    study = load("E14")
    jobs = jobs_of(study, "smoke", 2, tmp_path, Sources())
    outcomes = [Outcome(job, {"knn": 40.0 + i, "linear": 50.0}, {}, 1.0, 2e12) for i, job in enumerate(jobs)]
    folder = write(study, "smoke", outcomes, "effssl study run E14", tmp_path / "E14")
    found = data_of(folder / "report.html")
    arm = found["measures"][0]["arms"][0]
    assert (arm["ours"], arm["published"], arm["seeds"]) == (40.5, study.arms[0].published["knn"], 2)
    assert len(found["claims"]) == len(study.claims)
    (folder / "results.json").write_text("[]")
    with pytest.raises(RequestError, match="neither a run nor a study"):
        write_report(folder)


def test_strange_files_are_not_overwritten(digits: Run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    mine = tmp_path / "mine.html"
    mine.write_text("my own page")
    with pytest.raises(RequestError, match="not a report of effssl"):
        write_report(digits.folder, mine, images=0)
    assert mine.read_text() == "my own page"
    slow = Run(shutil.copytree(digits.folder, tmp_path / "slow"))
    slow.metrics_path.write_text("nobody gets to read this\n")
    with pytest.raises(RequestError, match="not a report of effssl"):
        write_report(slow.folder, mine)
    made = tmp_path / "made.html"
    write_report(digits.folder, made, images=0)
    main(["report", str(digits.folder), "--out", str(made), "--images", "20"])  # its own may be drawn again
    assert "made.html" in capsys.readouterr().out
    with pytest.raises(RequestError, match="folder that exists"):
        write_report(digits.folder, tmp_path / "no/where.html", images=0)
    with pytest.raises(RequestError, match="takes no files"):
        write_report(slow.folder, "/proc/page.html")
    with pytest.raises(RequestError, match="between 0"):
        write_report(digits.folder, images=50_000)
    with pytest.raises(RequestError, match="no run folder"):
        write_report(tmp_path / "nothing")


def test_the_page_is_small_for_many_images() -> None:
    noise = torch.randint(0, 256, (6000, 3, 32, 32), dtype=torch.uint8)  # the worst there is for JPEG
    assert len(sheet(noise, 32)["src"]) < 14e6


def test_tiles_do_not_bleed_into_each_other() -> None:
    pixels = torch.zeros(9, 3, 16, 16, dtype=torch.uint8)
    pixels[4] = 255
    made = sheet(pixels, 16)
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(made["src"].split(",")[1]))))
    assert (made["columns"], made["rows"]) == (3, 3)
    assert picture[16:32, 16:32].min() > 250
    assert picture[:16].max() < 5


def test_a_collapsed_encoder_has_a_map_of_one_point() -> None:
    maps = positions(np.ones((40, 8)) / 8**0.5)
    assert list(maps) == ["PCA"]
    assert len({tuple(place) for place in maps["PCA"]}) == 1


def test_probe_and_gallery() -> None:
    labels = torch.arange(40) % 2
    h = torch.nn.functional.one_hot(labels, 4).float()
    images = ArrayImages(torch.zeros(40, 3, 8, 8, dtype=torch.uint8), labels, ["a", "b"])
    sample = Sample(images, [str(i) for i in range(40)], torch.arange(40) >= 20)
    found = probe(h, sample)
    assert found is not None
    assert found["accuracy"] == 100
    assert found["cells"] == [[0, 0, 10], [1, 1, 10]]
    assert cells(torch.tensor([0, 0, 1]), torch.tensor([1, 1, 1])) == [[0, 1, 2], [1, 1, 1]]
    shown = gallery([[((i + 2) % 40, 99)] for i in range(40)], labels.tolist(), sample.held_out)
    assert shown["counts"] == [20, 0]
    assert all(row >= 20 for row in shown["hits"])


def test_where_things_lie_is_not_told(digits: Run, tmp_path: Path) -> None:
    run = Run(shutil.copytree(digits.folder, tmp_path / "run"))
    results = run.results()
    results["transfer@/some/place/pets"] = results["knn"] | {"constants": {"split": "/some/place/lists/train.txt"}}
    run.results_path.write_text(json.dumps(results))
    run.config_path.write_text(run.config_path.read_text().replace("saliency: ''", "saliency: /some/place/maps.npz"))
    found = facts(run)
    assert found["scores"][-1]["name"] == "transfer@pets, test"
    assert found["scores"][-1]["how"].endswith("; split train.txt")
    assert found["scores"][-2]["constants"][-1] == "bank train, no augmentation"
    assert (found["about"]["data"], found["config"]["data"]) == ("digits.npz", "digits.npz")
    assert found["config"]["augment.saliency"] == "maps.npz"
    assert "/some/place" not in json.dumps(found)
    assert str(tmp_path) not in json.dumps(found)


def test_values_that_json_does_not_know_are_no_curve() -> None:
    found = curves([{"epoch": 1, "loss": float("nan"), "own": 1.0}, {"epoch": 2, "loss": 2.0, "verdict": "x"}])
    assert found["columns"] == {"loss": [None, 2.0], "own": [1.0, None]}
    assert "NaN" not in as_block(found)
