"""Runs that start from existing weights."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import load_file
from torch import Tensor

import effssl
from effssl.cli import main
from effssl.network.loaded import load_encoder
from effssl.run import RunFolder
from effssl.training.optimizers import set_learning_rate
from effssl.training.pretraining import fit_to_data, make_plan
from effssl.training.request import Request
from effssl.training.trainer import Trainer

QUICK = {"encoder": "small-4", "batch_size": 64, "subset": 512, "quiet": True, "report": False}
STARTED = {key: value for key, value in QUICK.items() if key != "encoder"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> effssl.Run:
    """A finished run with whitened features, whose preprocessing is its own."""
    augment = {"mean": (0.3, 0.3, 0.3), "std": (0.4, 0.4, 0.4)}
    folder = tmp_path_factory.mktemp("start") / "source"
    return effssl.pretrain("digits", "simclr", epochs=2, whiten="on", augment=augment, out=folder, **QUICK)


def trainer_of(**flags) -> Trainer:
    device = torch.device("cpu")
    plan = make_plan(Request({"data": "digits", "objective": "simclr", "batch_size": 64} | flags), device)
    data = effssl.open_data("digits")
    return Trainer(fit_to_data(plan, data), data, device)


def backbone(trainer: Trainer) -> dict[str, Tensor]:
    return trainer.objective.network.encoder.backbone.state_dict()


def test_a_run_starts_from_the_network_below_a_readout(source: effssl.Run) -> None:
    trainer = trainer_of(start_from=str(source.folder), start_projector=True)
    saved = load_file(source.encoder_path)
    assert any(key.startswith("readout.") for key in saved)
    assert all(torch.equal(value, saved[key]) for key, value in backbone(trainer).items())
    checkpoint = source.encoder(projector=True).projector
    assert checkpoint is not None
    projector = trainer.objective.network.projector.state_dict()
    assert all(torch.equal(value, projector[key]) for key, value in checkpoint.state_dict().items())
    config = trainer.config
    assert config.encoder == "small-4"
    assert config.augment.mean == (0.3, 0.3, 0.3)
    assert config.augment.std == (0.4, 0.4, 0.4)
    assert config.start_from == str(source.folder.resolve())
    assert config.start_digest == load_encoder(source.encoder_path).without_whitening().fingerprint()
    assert f"digest {config.start_digest}): " in trainer.objective.start_note
    assert trainer.objective.start_note.endswith("its projector too")


def test_a_projector_of_other_shapes_starts_anew_and_flags_win(source: effssl.Run) -> None:
    mean = (0.1, 0.2, 0.3)
    trainer = trainer_of(
        start_from=str(source.folder), start_projector=True, projector={"hidden": 24}, augment={"mean": mean}
    )
    assert "its projector has other shapes and starts anew" in trainer.objective.start_note
    assert trainer.config.augment.mean == mean
    assert trainer.config.augment.std == (0.4, 0.4, 0.4)


def test_the_first_evaluation_is_that_of_the_starting_weights(
    source: effssl.Run, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    loud = STARTED | {"quiet": False}
    run = effssl.pretrain("digits", "byol", epochs=1, out=tmp_path / "r", whiten="on", start_from=source.folder, **loud)
    first, last = run.metrics()[0]["knn"], run.metrics()[-1]["knn"]
    assert first == pytest.approx(source.metrics()[-1]["knn"], abs=0.01)
    said = capfd.readouterr().err
    assert f"kNN {first:.1f} % with the starting weights → {last:.1f} % now" in said
    assert said.index(f"kNN {first:.1f} % with the starting weights\n") < said.index("epoch 1")
    assert re.search("(above|below|equal to) the starting weights", run.metrics()[-1]["why"])
    card = effssl.export(run, "safetensors", tmp_path / "e.safetensors").with_name("e.safetensors.md").read_text()
    assert f"| started from | source, digest {run.config.start_digest} |" in card


def test_starting_weights_that_are_gone_do_not_stop_an_evaluation(
    source: effssl.Run, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    gone = effssl.pretrain("digits", "simclr", epochs=1, out=tmp_path / "gone", **QUICK)
    run = effssl.pretrain("digits", "byol", epochs=1, out=tmp_path / "r", start_from=gone.folder, **STARTED)
    for name in ("encoder.safetensors", "checkpoint.pt", "checkpoint.previous.pt"):
        (gone.folder / name).unlink(missing_ok=True)
    score, baselines = run.scores("knn", baselines=True)
    assert score.value > 20
    assert "pixels" in baselines
    assert "starting weights" not in baselines
    assert "the starting weights cannot be read and are left out" in capsys.readouterr().err


def test_a_shorter_run_is_the_default(source: effssl.Run) -> None:
    usual = trainer_of(encoder="small-4").config
    shorter = trainer_of(start_from=str(source.folder)).config
    assert shorter.epochs == -(-usual.epochs // 4)
    assert shorter.schedule.warmup_epochs <= shorter.epochs / 10
    assert trainer_of(start_from=str(source.folder), epochs=7).config.epochs == 7


def test_weight_files_of_others_with_a_stem_for_large_images(tmp_path: Path) -> None:
    resnet = torchvision.models.resnet18()
    torch.save({"state_dict": {f"module.{k}": v for k, v in resnet.state_dict().items()}}, tmp_path / "w.pth")
    trainer = trainer_of(start_from=str(tmp_path / "w.pth"), encoder="resnet18")
    found, given = backbone(trainer), resnet.state_dict()
    assert all(torch.equal(found[key], given[key]) for key in found if key != "conv1.weight")
    assert found["conv1.weight"].shape == (64, 3, 3, 3)
    note = trainer.objective.start_note
    assert "adapted: kernels of the first convolution resized from 7×7 to 3×3" in note
    assert "not taken: state_dict.module.fc (2)" in note
    assert "mean and std of ImageNet assumed; give --augment.mean/--augment.std" in note


def test_an_assumed_preprocessing_is_said_unless_it_was_given(source: effssl.Run, tmp_path: Path) -> None:
    torch.save(source.encoder().backbone.state_dict(), tmp_path / "w.pth")
    flags = {"start_from": str(tmp_path / "w.pth"), "encoder": "small-4"}
    mean, std = (0.3, 0.3, 0.3), (0.4, 0.4, 0.4)
    half = trainer_of(**flags, augment={"mean": mean})
    assert "; std of ImageNet assumed; give --augment.std" in half.objective.start_note
    assert half.config.augment.std == (0.229, 0.224, 0.225)
    assert "of ImageNet" not in trainer_of(**flags, augment={"mean": mean, "std": std}).objective.start_note
    assert "of ImageNet" not in trainer_of(start_from=str(source.folder)).objective.start_note


def test_starting_weights_are_evaluated_as_at_epoch_0(tmp_path: Path) -> None:
    """At the size, with the stem and in the preprocessing of the run, not those of the file."""
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / "w.pth")
    trainer = trainer_of(start_from=str(tmp_path / "w.pth"), encoder="resnet18", augment={"mean": (0.3, 0.3, 0.3)})
    run = effssl.Run(RunFolder.create(tmp_path / "r", trainer.config).folder)
    found = run.starting_weights()
    assert found is not None
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    x = found.preprocess(images)
    assert trainer.config.image_size == found.size == 16
    std = torch.tensor(trainer.config.augment.std).view(3, 1, 1)
    torch.testing.assert_close(x * std + 0.3, images / 255, atol=1e-5, rtol=0)
    torch.testing.assert_close(found(images), trainer.objective.network.encoder.eval()(x), atol=1e-4, rtol=1e-4)
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / "w.pth")
    assert run.starting_weights() is None  # other weights by now


def test_a_hub_that_cannot_be_reached_is_refused_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """The hub's own client tries again for a minute."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    started = time.monotonic()
    with pytest.raises(effssl.RequestError, match=r"cannot be fetched here \(no connection: .{1,60}\); download model"):
        trainer_of(start_from="timm:resnet18")
    assert time.monotonic() - started < 15
    assert "fetching the pretrained weights of timm:resnet18" in capfd.readouterr().err


def test_pretrained_weights_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file lies where the error message says it is to be put."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub/checkpoints").mkdir(parents=True)
    resnet = torchvision.models.resnet18()
    url = torchvision.models.ResNet18_Weights.DEFAULT.url
    torch.save(resnet.state_dict(), tmp_path / "hub/checkpoints" / url.rpartition("/")[2])
    trainer = trainer_of(start_from="torchvision:resnet18", image_size=96)
    assert torch.equal(backbone(trainer)["conv1.weight"], resnet.conv1.weight)
    assert trainer.config.augment.mean == (0.485, 0.456, 0.406)
    assert trainer.config.start_from == "torchvision:resnet18"
    assert "adapted" not in trainer.objective.start_note


def test_frozen_stages_stay_and_others_learn(source: effssl.Run) -> None:
    trainer = trainer_of(start_from=str(source.folder), objective="byol", freeze=2)
    before = {key: value.clone() for key, value in backbone(trainer).items()}
    for _, views in zip(range(3), trainer.loader.epoch(0), strict=False):
        trainer.step(views)
    after = backbone(trainer)
    frozen = ("conv1", "bn1", "layer1")
    changed = {key for key in after if not torch.equal(before[key], after[key])}
    assert not any(key.startswith(frozen) for key in changed)  # statistics of batch norm included
    assert {key for key in after if key.startswith("layer") and "conv" in key and "layer1" not in key} <= changed


@pytest.mark.parametrize("name", ["sgd", "lars", "adamw", "muon"])
def test_learning_rates_fall_from_stage_to_stage(source: effssl.Run, name: str) -> None:
    optimizer = {"name": name, "layer_decay": 0.5}
    trainer = trainer_of(start_from=str(source.folder), optimizer=optimizer, lr=0.1, freeze=1)
    set_learning_rate(trainer.optimizer, 0.08)
    rates = {id(p): group["lr"] for group in trainer.optimizer.param_groups for p in group["params"]}
    b = trainer.objective.network.encoder.backbone
    assert id(b.conv1.weight) not in rates
    found = [rates[id(getattr(b, f"layer{i}")[0].conv1.weight)] for i in (1, 2, 3, 4)]
    assert found[1:] == pytest.approx([0.01, 0.02, 0.04])
    assert trainer.lr == 0.08  # what is logged is the schedule's
    assert len(rates) == sum(p.requires_grad for p in trainer.objective.parameters())


def test_resume_is_to_the_bit_even_if_the_source_is_gone(
    source: effssl.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "start.safetensors"
    copy.write_bytes(source.encoder_path.read_bytes())
    flags = STARTED | {"start_from": copy, "freeze": 1, "optimizer": {"layer_decay": 0.7}, "epochs": 3}
    whole = effssl.pretrain("digits", "byol+rotation", out=tmp_path / "whole", **flags)
    real, calls = Trainer.step, 0

    def dies_in_the_second_epoch(self, batch):
        nonlocal calls
        calls += 1
        if calls == 11:
            raise KeyboardInterrupt
        return real(self, batch)

    monkeypatch.setattr(Trainer, "step", dies_in_the_second_epoch)
    with pytest.raises(KeyboardInterrupt):
        effssl.pretrain("digits", "byol+rotation", out=tmp_path / "cut", **flags)
    monkeypatch.setattr(Trainer, "step", real)
    copy.unlink()
    cut = effssl.pretrain("digits", "byol+rotation", out=tmp_path / "cut", resume="auto", **flags)
    a, b = load_file(whole.encoder_path), load_file(cut.encoder_path)
    assert all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.long
def test_a_budget_starts_from_weights_too(source: effssl.Run, tmp_path: Path) -> None:
    run = effssl.pretrain("digits", "simclr", out=tmp_path / "r", budget="20s", start_from=source, **STARTED)
    assert run.finished
    assert run.metrics()[0]["knn"] > 60
    assert run.config.encoder == "small-4"


def test_a_config_means_the_weights_of_its_digest(source: effssl.Run, tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    weights.write_bytes(source.encoder_path.read_bytes())
    run = effssl.pretrain("digits", "byol", epochs=1, out=tmp_path / "r", start_from=weights, **STARTED)
    again = effssl.pretrain(config=run.config_path, out=tmp_path / "again", quiet=True, report=False)
    assert again.encoder_path.read_bytes() == run.encoder_path.read_bytes()
    weights.write_bytes(run.encoder_path.read_bytes())
    with pytest.raises(effssl.RequestError, match="has changed: its digest is"):
        effssl.pretrain(config=run.config_path, out=tmp_path / "other", quiet=True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--start-from", "SOURCE", "--encoder", "resnet18"], "holds weights of small-4, not of resnet18"),
        (["--start-from", "gray4.pth", "--encoder", "resnet18"], "is for images of 4 channels; images here have 3"),
        (["--start-from", "gray4.pth", "--encoder", "resnet50"], "is --encoder right?"),
        (["--start-from", "gray4.pth"], "does not name its architecture; add --encoder"),
        (["--start-from", "notes.txt", "--encoder", "resnet18"], "notes.txt is not a weight file"),
        (["--start-from", "notes.txt"], "notes.txt is not a weight file"),
        (["--start-from", "empty"], "empty is not a run folder"),
        (["--start-from", "missing"], "no run folder, weight file or torchvision model named 'missing'"),
        (["--start-from", "small"], "there are no pretrained weights of small"),
        (["--start-from", "timm:resnet81"], "timm has no model named 'resnet81' (did you mean resnet18?)"),
        (["--start-from", "timm:resnet18.mine"], "timm has no weights 'mine' of resnet18; it has a1_in1k, "),
        (["--start-from", "torchvision:resnet18"], "into {tmp}/hub/checkpoints"),
        (["--start-from", "SOURCE", "--freeze", "5"], "small-4 has 5 stages, and the last one has to learn"),
        (["--freeze", "1", "--encoder", "alexnet", "--image-size", "64"], "alexnet has no stages to freeze"),
        (["--start-projector"], "--start-projector needs --start-from"),
        (["--start-from", "SOURCE", "--out", "other", "--resume", "auto"], "was started from random weights"),
        (["--out", "other", "--resume", "auto", "--start-from", "empty"], "cannot be resumed from empty"),
    ],
)  # fmt: skip
def test_bad_requests_get_one_line(
    flags: list[str], message: str, source: effssl.Run, in_tmp: Path,
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("TORCH_HOME", str(in_tmp))
    if "torchvision:resnet18" in flags:
        monkeypatch.setattr(torchvision.models._api, "load_state_dict_from_url", _unreachable)
    state = torchvision.models.resnet18().state_dict()
    torch.save(state | {"conv1.weight": torch.zeros(64, 4, 7, 7)}, "gray4.pth")
    Path("notes.txt").write_text("hello")
    Path("empty").mkdir()
    RunFolder.create("other", trainer_of(encoder="small-4").config)
    given = [str(source.folder) if flag == "SOURCE" else flag for flag in flags]
    out = [] if "--out" in flags else ["--out", "new"]
    with pytest.raises(SystemExit) as stop:
        main(["pretrain", "--data", "digits", "--objective", "simclr", "--batch-size", "64", *out, *given])
    assert stop.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert message.format(tmp=in_tmp) in said[-1]
    assert not Path("new").exists()


def _unreachable(*_: object, **__: object) -> None:
    raise OSError("no route to host")
