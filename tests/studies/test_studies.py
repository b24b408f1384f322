"""Every study runs, resumes and says what it found; a claim is held, not held or not decided."""

from __future__ import annotations

import dataclasses
import gc
import html
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from effssl.config import merge
from effssl.data import ArrayImages, Data
from effssl.recipes import resolve
from effssl.runtime.errors import RequestError
from effssl.studies import load, names
from effssl.studies.plan import Sources, gflop_per_image, jobs_of, settings
from effssl.studies.report import figures, markdown, rows, verdicts, write
from effssl.studies.runner import run_study
from effssl.studies.study import (
    Arm,
    Claim,
    Figures,
    Study,
    beats,
    compute,
    crossing,
    falls_less,
    gain_moves,
    gains_at,
    reaches,
    reaches_compute,
)
from effssl.training.loop import Trainer


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studies")  # shared: an arm that two studies have is run once


def thinned(study: Study) -> Study:
    """The same study with two points of every axis."""
    curves: dict[str, list[Arm]] = {}
    for arm in sorted(study.arms, key=lambda arm: arm.at or 0.0):
        curves.setdefault(arm.curve, []).append(arm)
    return dataclasses.replace(study, arms=tuple(a for arms in curves.values() for a in (arms[0], *arms[1:][-1:])))


def smoke(study: Study, out: Path) -> None:
    outcomes = run_study(study, "smoke", 1, 0, out, plan=False)
    assert not [o.failed for o in outcomes if o.failed]
    lacking = {why for o in outcomes for why in o.missing.values()}  # detection needs a folder of its own, and says so
    assert lacking == {"E18": {"needs --voc, a folder"}, "E05": {"has no projection"}, "E17": {"not among --sets"}}.get(
        study.name, set()
    )
    folder = write(study, "smoke", outcomes, "effssl study run", out / study.name)
    found = json.loads((folder / "results.json").read_text())
    assert len(found["runs"]) == len(study.arms)
    assert len(found["claims"]) == len(study.claims)
    assert (folder / "figure.png").exists() == bool(study.axis or "snr" in study.measures)
    assert study.title in html.unescape((folder / "report.html").read_text())


@pytest.mark.parametrize("name", names())
def test_each_study_runs(name: str, out: Path) -> None:
    study = load(name)
    smoke(thinned(study) if study.axis else study, out)


@pytest.mark.long
@pytest.mark.parametrize("name", names())
def test_each_study_runs_in_full(name: str, out: Path) -> None:
    smoke(load(name), out)


@pytest.mark.parametrize("name", names())
def test_each_arm_is_a_valid_request_at_paper_scale(name: str) -> None:
    study = load(name)
    for arm in study.arms:
        config = resolve(settings(study, arm, 0, "paper", Sources(images="photos", maps="maps.npz"))).config
        assert config.epochs == max(1, round(study.epochs * arm.length))
        assert config.encoder == ("resnet50" if study.data == "imagenet1k" else "resnet18")


def test_at_paper_scale_the_efficient_form_keeps_the_published_batch() -> None:
    study = load("C02")
    configs = [resolve(settings(study, arm, 0, "paper", Sources())).config for arm in study.arms]
    assert {(config.batch_size, config.lr) for config in configs} == {(512, 0.5)}


@pytest.mark.long
@pytest.mark.parametrize("name", names())
def test_each_arm_takes_a_step_at_paper_scale(name: str, tmp_path: Path) -> None:
    """The published network and objective on eight images; photographs of 64 pixels stand in for those of 224."""
    for job in jobs_of(load(name), "paper", 1, tmp_path, Sources(images="photos", maps="maps.npz")):
        shrunk = {"batch_size": 8, "lr": 0.1, "schedule": {"warmup_epochs": 0.0}, "augment": {"saliency": ""}}
        size = resolve(dict(job.flags)).config.image_size
        stem = "large" if size > 64 else "small"  # that of the published network, whatever the images here
        plan = resolve(merge(dict(job.flags), {**shrunk, "image_size": min(size, 64) or 32, "stem": stem}))
        pixels = torch.randint(256, (8, 3, 64, 64), dtype=torch.uint8)
        trainer = Trainer(
            plan, Data("noise", ArrayImages(pixels, torch.arange(8), list("01234567"))), torch.device("cpu")
        )
        before = [p.clone() for p in trainer.objective.network.encoder.parameters()]
        loss, _ = trainer.step(next(iter(trainer.loader.epoch(0))))
        assert loss.isfinite(), job.arm.name
        moved = zip(before, trainer.objective.network.encoder.parameters(), strict=True)
        assert any(not old.equal(new) for old, new in moved), job.arm.name
        del trainer, before, moved
        gc.collect()  # a trainer and its loader know each other


@pytest.mark.parametrize("name", names())
def test_each_arm_can_be_built_at_cpu_scale(name: str, tmp_path: Path) -> None:
    jobs = jobs_of(load(name), "cpu", 1, tmp_path, Sources(images="photos", maps="maps.npz"))
    assert len(jobs) >= 2
    for job in {job.flags["objective"]: job for job in jobs}.values():
        gflop_per_image(dataclasses.replace(job, flags={**job.flags, "batch_size": 8, "lr": 0.1}))


@pytest.mark.parametrize("name", ["C01", "C02", "C03", "C04", "C05"])
@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_arms_of_a_study_against_compute_are_all_different(name: str, scale: str, tmp_path: Path) -> None:
    jobs = jobs_of(load(name), scale, 1, tmp_path, Sources(images="photos"))
    assert len({job.folder for job in jobs}) == len(jobs)


def test_shared_arms_have_one_folder(tmp_path: Path) -> None:
    def folders(name: str) -> dict[str, Path]:
        jobs = jobs_of(load(name), "cpu", 1, tmp_path, Sources())
        return {job.arm.name: job.folder for job in jobs}

    main, other, jitter = folders("E06"), folders("E05"), folders("E14")
    assert main["BYOL"] == other["BYOL"] == jitter["BYOL"]
    assert main["BYOL+R"] == jitter["BYOL+R"] == folders("E04")["BYOL+R, 0 %"] == folders("E15")["cross-entropy"]
    assert main["BYOL, C100"] == main["BYOL"]  # CIFAR-10 stands in for CIFAR-100
    assert len(set(main.values())) == len(main) / 2
    base, curve, ours = folders("C01"), folders("E07"), folders("C02")
    assert base["BYOL × 1"] == main["BYOL"] == curve["BYOL, 600 epochs"]
    assert base["BYOL+R × 1"] == curve["BYOL+R, 600 epochs"]
    assert ours["SimCLR+R × 1"] == main["SimCLR+R"]


def one_arm(name: str, **flags) -> Arm:
    return Arm(name, "byol", {"knn": 50.0}, flags)


def test_a_failed_arm_stops_nobody_else_and_is_tried_again(tmp_path: Path) -> None:
    arms = (one_arm("good"), one_arm("bad", lr=1e30))
    study = Study("X", "x", "x", "cifar10", 200, ("knn",), arms, (beats([("good", "bad")], "knn", "good is better"),))
    good, bad = run_study(study, "smoke", 1, 0, tmp_path, plan=False)
    assert good.values["knn"] > 0
    assert "not finite" in bad.failed
    f = figures(study, [good, bad])
    assert "none (" in rows(study, f, [good, bad])[1][1]
    assert verdicts(study, f)[0][1] == "not decided at this scale"
    before = (good.job.folder / "encoder.safetensors").stat().st_mtime_ns
    bad.job.folder.with_suffix(".failed").write_text("something else\n")
    good, bad = run_study(study, "smoke", 1, 1, tmp_path, plan=False)  # now in a process of its own
    assert "not finite" in bad.failed
    assert (good.job.folder / "encoder.safetensors").stat().st_mtime_ns == before


def test_a_killed_study_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "effssl", "study", "run", "E14", "--scale", "smoke", "--jobs", "0", "--out"]
    running = subprocess.Popen([*command, str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("arms/*/measures.json"))) < 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.wait()
    first = {path: path.stat().st_mtime_ns for path in tmp_path.glob("arms/*/encoder.safetensors")}
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=True)
    assert len(list(tmp_path.glob("arms/*/measures.json"))) == 4
    assert first
    assert all(path.stat().st_mtime_ns == then for path, then in first.items())
    assert "falls" in done.stdout or "less is lost" in done.stdout
    shown = subprocess.run(
        [sys.executable, "-m", "effssl", "study", "show", "E14", "--scale", "smoke", "--out", str(tmp_path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "| BYOL+R, no jitter |" in shown.stdout


def test_requests_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="did you mean"):
        load("E6")
    with pytest.raises(RequestError, match="--images"):
        jobs_of(load("E08"), "cpu", 1, tmp_path, Sources())
    with pytest.raises(RequestError, match="--maps"):
        jobs_of(load("E02"), "cpu", 1, tmp_path, Sources(images="x"))
    with pytest.raises(RequestError, match="unknown scale"):
        jobs_of(load("E06"), "large", 1, tmp_path, Sources())


# ---------------------------------------------------------------------------------------------------------------
# Claims


def measured(**values: list[float]) -> Figures:
    arms = [Arm(name, name.split("_")[0], at=float(name.split("_")[1]) if "_" in name else None) for name in values]
    return Figures({(name, "knn"): v for name, v in values.items()}, arms)


def check(claim: Claim, f: Figures) -> bool | None:
    return claim.check(f)


def test_beats() -> None:
    claim = beats([("a", "b")], "knn", "")
    assert check(claim, measured(a=[50.0], b=[48.0])) is True
    assert check(claim, measured(a=[48.0], b=[50.0])) is False
    assert check(claim, measured(a=[50.5], b=[50.0])) is None  # one seed cannot tell half a point
    assert check(claim, measured(a=[50.5, 50.6, 50.4], b=[50.0, 50.1, 49.9])) is True
    assert check(claim, measured(a=[50.2, 50.3, 50.1], b=[50.0, 50.1, 49.9])) is None
    assert check(claim, measured(a=[52.0, 48.0, 53.0], b=[50.0, 50.1, 49.9])) is None
    assert check(claim, measured(a=[50.0])) is None


def test_a_gain_that_grows() -> None:
    f = measured(byol_0=[50.0], byol_90=[20.0], more_0=[51.0], more_90=[30.0])
    assert check(gain_moves("byol", "more", "knn", True, ""), f) is True
    assert check(gain_moves("byol", "more", "knn", False, ""), f) is False


def test_crossing() -> None:
    f = measured(byol_2=[30.0], byol_6=[40.0], more_1=[35.0], more_3=[45.0])
    assert crossing(f, "byol", "more", "knn") == pytest.approx(2 / 6)
    assert check(reaches("byol", "more", "knn", 0.4, ""), f) is True
    assert check(reaches("byol", "more", "knn", 1 / 3, ""), f) is None  # within what one seed cannot tell
    assert check(reaches("byol", "more", "knn", 0.25, ""), f) is False
    assert crossing(measured(byol_2=[30.0], byol_6=[60.0], more_1=[35.0], more_3=[45.0]), "byol", "more", "knn") is None


def test_falls_less() -> None:
    claim = falls_less(("a", "b"), ("c", "d"), "knn", "")
    assert check(claim, measured(a=[50.0], b=[49.0], c=[50.0], d=[40.0])) is True
    assert check(claim, measured(a=[50.0], b=[40.0], c=[50.0], d=[49.0])) is False


def test_claims_about_compute() -> None:
    arms = [Arm("a1", "a", at=1), Arm("a2", "a", at=3), Arm("b1", "b", at=1), Arm("b2", "b", at=2)]
    values = {("a1", "knn"): [30.0], ("a2", "knn"): [40.0], ("b1", "knn"): [38.0], ("b2", "knn"): [42.0]}
    f = Figures(values, arms, {"a1": 10.0, "a2": 30.0, "b1": 15.0, "b2": 29.0})
    assert crossing(f, "a", "b", "knn") == pytest.approx(1.5 / 3)
    assert crossing(f, "a", "b", "knn", compute) == pytest.approx(22 / 30)
    assert reaches_compute("a", "b", "knn", 0.9, "").check(f) is True
    assert reaches_compute("a", "b", "knn", 0.73, "").check(f) is None
    assert reaches_compute("a", "b", "knn", 0.6, "").check(f) is False
    assert gains_at("a", "b", "knn", "").check(f) is True  # b2 and a2 cost the same within a tenth
    assert gains_at("a", "b", "knn", "").check(dataclasses.replace(f, flops={"a2": 30.0, "b2": 10.0})) is None


def test_gains_stand_beside_the_published_ones(tmp_path: Path) -> None:
    study = load("E14")
    outcomes = run_study(study, "smoke", 1, 0, tmp_path, plan=False)
    outcomes = [
        dataclasses.replace(o, values={"knn": 40.0 + i, "linear": 50.0 + 2 * i}) for i, o in enumerate(outcomes)
    ]
    text = markdown(study, "smoke", figures(study, outcomes), outcomes, "x")
    assert "+1.00 / +3.24 / -2.24" in text  # kNN: 86.56 → 89.80 in the paper, 40 → 41 here
    assert "+2.00 / +2.59 / -0.59" in text
