"""Every defined study is valid at every scale, and a new one takes one file."""

from __future__ import annotations

import dataclasses
import gc
import html
import json
import sys
from pathlib import Path

import pytest
import torch

from effssl.data import ArrayImages, Data
from effssl.recipes import resolve
from effssl.runtime.errors import RequestError
from effssl.schema import merge
from effssl.studies import definitions, load, names
from effssl.studies.cost import gflop_per_image
from effssl.studies.plan import Setup, plan_runs
from effssl.studies.report import write
from effssl.studies.results import StudyResults
from effssl.studies.runner import run_study
from effssl.studies.scales import Sources, arm_metrics, arm_settings
from effssl.studies.study import Arm, Study
from effssl.training.loop import Trainer

PHOTOS = Sources("photos", voc="voc", sets="flowers=flowers", maps="maps.npz")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studies")  # shared, so that an arm of two studies is run once


def thinned(study: Study) -> Study:
    """The same study with two points of every curve."""
    curves: dict[str, list[Arm]] = {}
    for arm in sorted(study.arms, key=lambda arm: arm.at or 0.0):
        curves.setdefault(arm.curve, []).append(arm)
    return dataclasses.replace(study, arms=tuple(a for arms in curves.values() for a in (arms[0], *arms[1:][-1:])))


def smoke(study: Study, out: Path) -> None:
    results = run_study(study, Setup("smoke", 1, out), jobs=0, plan=False)
    assert not [result.failed for result in results if result.failed]
    missing = {why for result in results for why in result.missing.values()}
    expected = {"E18": "needs voc=, a folder", "E05": "has no projector", "E17": "not among sets=", "E16": "start up"}
    assert all(expected[study.name] in why for why in missing) if study.name in expected else not missing
    folder = write(StudyResults(study, "smoke", results, "effssl study run"), out / study.name)
    found = json.loads((folder / "results.json").read_text())
    assert len(found["runs"]) == len(study.arms)
    assert found["claims"] == []  # the values mean nothing
    assert (folder / "figure.png").exists() == bool(study.axis or "snr" in study.metrics)
    assert study.title in html.unescape((folder / "report.html").read_text())


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n == "B01")) for n in names()])
def test_each_study_runs(name: str, out: Path) -> None:
    study = load(name)
    smoke(thinned(study) if study.axis else study, out)


@pytest.mark.long
@pytest.mark.parametrize("name", names())
def test_each_study_runs_in_full(name: str, out: Path) -> None:
    smoke(load(name), out)


@pytest.mark.parametrize("name", names())
def test_each_arm_is_valid_at_paper_scale(name: str) -> None:
    study = load(name)
    for arm in study.arms:
        config = resolve(arm_settings(study, arm, 0, "paper", PHOTOS)).config
        assert config.epochs == max(1, round(study.epochs * arm.length))
        assert config.encoder == ("resnet50" if study.data == "imagenet1k" else "resnet18")


def test_short_runs_keep_the_published_warm_up_at_paper_scale() -> None:
    for name, label, epochs in (("E02", "BYOL, 0 %", 50), ("E07", "BYOL+R, 50 epochs", 50)):
        study = load(name)
        arm = next(arm for arm in study.arms if arm.name == label)
        config = resolve(arm_settings(study, arm, 0, "paper", PHOTOS)).config
        assert (config.epochs, config.schedule.warmup_epochs) == (epochs, 10)


@pytest.mark.parametrize(("name", "epochs"), [("E09", 30), ("E17", 30), ("E19", 30), ("E20", 30), ("E08", None)])
def test_the_probe_on_imagenet_takes_30_epochs(name: str, epochs: int | None) -> None:
    study = load(name)
    for arm in study.arms:
        assert arm_metrics(study, arm, "paper", PHOTOS)["linear"].settings.get("epochs") == epochs


def test_transfer_reuses_the_c_of_the_base(tmp_path: Path) -> None:
    runs = plan_runs(load("E17"), Setup("cpu", 2, tmp_path, Sources("photos", sets="flowers=flowers")))
    bases = {run.seed: run for run in runs if run.arm.name == "SwAV"}
    joint = [run for run in runs if run.arm.name == "SwAV+R"]
    assert not any(run.needs_another for run in bases.values())
    for run in joint:
        assert run.metrics["flowers"].settings["reuse"] == str(bases[run.seed].folder / "results.json")
        assert "reuse" not in run.metrics["linear"].settings


def test_at_paper_scale_the_efficient_form_keeps_the_published_batch() -> None:
    study = load("C02")
    configs = [resolve(arm_settings(study, arm, 0, "paper", Sources())).config for arm in study.arms]
    assert {(config.batch_size, config.lr) for config in configs} == {(512, 0.5)}


@pytest.mark.long
@pytest.mark.parametrize("name", names())
def test_each_arm_takes_a_step_at_paper_scale(name: str, tmp_path: Path) -> None:
    """The published network and objective on eight images; photographs of 64 pixels replace those of 224."""
    for run in plan_runs(load(name), Setup("paper", 1, tmp_path, PHOTOS)):
        shrunk = {"batch_size": 8, "lr": 0.1, "schedule": {"warmup_epochs": 0.0}, "augment": {"saliency": ""}}
        size = resolve(dict(run.flags)).config.image_size
        stem = "large" if size > 64 else "small"  # that of the published network, whatever the images here
        plan = resolve(merge(dict(run.flags), {**shrunk, "image_size": min(size, 64) or 32, "stem": stem}))
        pixels = torch.randint(256, (8, 3, 64, 64), dtype=torch.uint8)
        images = ArrayImages(pixels, torch.arange(8), list("01234567"))
        trainer = Trainer(plan, Data("noise", images), torch.device("cpu"))
        before = [p.clone() for p in trainer.objective.network.encoder.parameters()]
        loss, _ = trainer.step(next(iter(trainer.loader.epoch(0))))
        assert loss.isfinite(), run.arm.name
        moved = zip(before, trainer.objective.network.encoder.parameters(), strict=True)
        assert any(not old.equal(new) for old, new in moved), run.arm.name
        del trainer, before, moved
        gc.collect()  # a trainer and its loader refer to each other


SAME_ARMS = ("B01", "C02", "C03", "C04", "C05")  # those of E06 or C01, with other base methods or images


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n in SAME_ARMS)) for n in names()])
def test_each_arm_can_be_built_at_cpu_scale(name: str, tmp_path: Path) -> None:
    runs = plan_runs(load(name), Setup("cpu", 1, tmp_path, PHOTOS))
    assert len(runs) >= 2
    for run in {run.flags["objective"]: run for run in runs}.values():
        assert gflop_per_image(dataclasses.replace(run, flags={**run.flags, "batch_size": 8, "lr": 0.1})) > 0


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("E08", Sources(), "E08 needs images="),
        ("E02", Sources("photos"), "E02 needs maps="),
        ("E17", Sources("photos"), "E17 needs sets="),
        ("E18", Sources("photos"), "E18 needs voc="),
    ],
)
def test_a_study_without_its_data_is_refused_before_it_runs(
    name: str, given: Sources, says: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=says):
        plan_runs(load(name), Setup("cpu", 1, tmp_path, given))
    plan_runs(load(name), Setup("smoke", 1, tmp_path, given))  # of embedded digits


@pytest.mark.parametrize("name", ["C01", "C02", "C03", "C04", "C05"])
@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_arms_of_a_study_against_compute_all_differ(name: str, scale: str, tmp_path: Path) -> None:
    runs = plan_runs(load(name), Setup(scale, 1, tmp_path, Sources(images="photos")))
    assert len({run.folder for run in runs}) == len(runs)


def test_a_new_study_takes_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "X01" not in names()
    (tmp_path / "of_a_test.py").write_text(
        "from effssl.studies.claims import beats\n"
        "from effssl.studies.study import Arm, Study\n"
        "ARMS = (Arm('MoCo', 'moco'), Arm('MoCo+R', 'moco+rotation'))\n"
        "CLAIM = beats([('MoCo+R', 'MoCo')], 'knn', 'rotation improves MoCo (kNN)')\n"
        "STUDIES = {'X01': Study('X01', 'MoCo', 'ours', 'cifar10', 200, ('knn',), ARMS, (CLAIM,))}\n"
    )
    monkeypatch.setattr(definitions, "__path__", [*definitions.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "effssl.studies.definitions.of_a_test", raising=False)
    assert names()[0] == "E01"
    assert "X01" in names()
    assert [run.arm.name for run in plan_runs(load("x01"), Setup("smoke", 1, tmp_path))] == ["MoCo", "MoCo+R"]


def test_unknown_studies_are_refused() -> None:
    with pytest.raises(RequestError, match="did you mean"):
        load("E6")
