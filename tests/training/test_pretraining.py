"""The product, run for real on the embedded digits: it learns, resumes exactly, and refuses what it should."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import effssl
from effssl.cli import main
from effssl.runtime.errors import RequestError, RunFailed
from effssl.training.trainer import Trainer

QUICK = {"quiet": True, "encoder": "small", "batch_size": 64, "subset": 512}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> effssl.Run:
    out = tmp_path_factory.mktemp("runs") / "digits"
    return effssl.pretrain("digits", "byol+rotation", epochs=4, out=out, **QUICK)


def test_a_run_learns_and_says_so(tmp_path: Path) -> None:
    run = effssl.pretrain("digits", "simclr+rotation", epochs=8, out=tmp_path / "r", quiet=True, batch_size=64, lr=0.2)
    metrics = run.metrics()
    first, last = metrics[0], metrics[-1]
    assert last["knn"] > first["knn"] + 2
    assert metrics[1]["baseline/pixels"] > last["knn"] + 2  # digits are that easy, and the run says so
    assert last["verdict"] == "worse than pixels"
    assert last["accuracy/rotation"] > 0.4
    assert run.knn().accuracy > 65  # chance is 10


def test_the_folder_holds_what_it_should(finished: effssl.Run) -> None:
    names = {path.name for path in finished.folder.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "checkpoint.pt", "checkpoint.previous.pt", "encoder.safetensors"} <= names
    assert not any(name.startswith(".") for name in names)
    assert finished.finished
    config = finished.config
    assert config.image_size == 16  # resolved
    assert config.recipe == "cpu-byol-efficient"
    assert "torch" in finished.config_path.read_text()
    metrics = finished.metrics()
    assert [line["epoch"] for line in metrics] == [0, 1, 2, 3, 4]
    flops = [line["flops"] for line in metrics]
    assert flops[4] - flops[3] > flops[2] - flops[1] == flops[1] > 0  # views of the last epochs are larger
    assert metrics[-1]["images"] == 4 * 512
    assert {"loss", "loss/byol", "loss/rotation", "lr", "seconds", "knn", "std_h", "std_z", "rank_h", "rank_z"} <= set(
        metrics[-1]
    )


def test_scores_are_stored_with_their_protocol(finished: effssl.Run) -> None:
    knn, linear = finished.knn(), finished.linear(epochs=20)
    stored = json.loads((finished.folder / "results.json").read_text())
    assert stored["knn"]["value"] == knn.accuracy
    assert stored["linear epochs=20"]["constants"]["lr"] in (0.1, 0.5, 1.0, 1.5, 2.0)
    assert stored["knn"]["source"]["test_images"] == 360
    assert stored["knn"]["source"]["encoder_fingerprint"] == stored["linear epochs=20"]["source"]["encoder_fingerprint"]
    assert 50 < knn.accuracy <= 100
    assert linear.accuracy > 65
    assert linear.also["best_epoch_accuracy"] >= linear.accuracy
    other = finished.knn(k=5)  # another protocol: stored beside the first, not over it
    stored = json.loads((finished.folder / "results.json").read_text())
    assert stored["knn"]["value"] == knn.accuracy
    assert stored["knn k=5"]["value"] == other.accuracy


def test_load_gives_a_frozen_module_ready_for_images(finished: effssl.Run) -> None:
    encoder = effssl.load(finished.folder)
    assert isinstance(encoder, torch.nn.Module)
    assert not encoder.training
    images = effssl.open_data("digits").test.pixels[:7]
    features = encoder(images)
    assert features.shape == (7, encoder.dim)
    floats = encoder(images.float() / 255)  # are not rounded to gray levels when they are resized
    assert torch.cosine_similarity(features, floats).min() > 0.999
    assert torch.equal(effssl.load(finished.folder / "encoder.safetensors")(images), features)
    assert encoder(torch.zeros(1, 3, 50, 33, dtype=torch.uint8)).shape == (1, encoder.dim)
    from PIL import Image

    assert encoder.embed([Image.new("L", (40, 30)), Image.new("RGB", (9, 9))]).shape == (2, encoder.dim)


def test_same_seed_same_run_other_seed_other_run(finished: effssl.Run, tmp_path: Path) -> None:
    def weights(seed: int, name: str) -> dict:
        run = effssl.pretrain("digits", "byol+rotation", epochs=4, out=tmp_path / name, seed=seed, **QUICK)
        return load_file(run.encoder_path)

    expected, same, other = load_file(finished.encoder_path), weights(0, "same"), weights(1, "other")
    assert all(torch.equal(expected[key], same[key]) for key in expected)
    assert not torch.equal(expected["conv1.weight"], other["conv1.weight"])


DERIVED = {
    "recipe": "cpu-simclr", "encoder": "tiny", "stem": "pca", "whiten": "on",
    "words": {"filters": 8, "stride": 4, "dim": 16}, "readout": {"dim": 32, "patches": 8, "patch_dim": 16},
    "optimizer": {"name": "muon", "nesterov": True}, "lr": 0.02,
}  # fmt: skip
"""Everything that is computed from the images: a stem, the targets of words, a readout."""


@pytest.mark.parametrize(
    ("objective", "flags"),
    [
        ("byol+rotation", {}),
        ("simsiam", {}),
        ("simclr+words", DERIVED),
        ("sigreg", {"optimizer": {"name": "adamw"}, "lr": 0.001}),
        ("barlow+rotation", {"optimizer": {"name": "muon", "clip_norm": 1.0}, "lr": 0.02}),
        ("nnclr", {"nnclr": {"queue": 100}, "ema": 0.99}),
        ("distill+rotation", {"distill": {"teacher": "pixels-8"}, "ema": 0.9, "whiten": "on", "readout": {"dim": 32}}),
        ("dino", {"dino": {"prototypes": 50}, "views": {"small": {"count": 2, "size": 12}}}),
        ("vicreg+tcr+rotation", {"optimizer": {"name": "lars", "trust": 0.02}, "encoder": "tiny"}),
    ],
)
def test_resume_equals_no_interruption_to_the_bit(
    objective: str, flags: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = QUICK | flags
    whole = effssl.pretrain("digits", objective, epochs=3, out=tmp_path / "whole", **quick)
    real = Trainer.step
    calls = 0

    def dies_in_the_second_epoch(self, batch):
        nonlocal calls
        calls += 1
        if calls == 11:
            raise KeyboardInterrupt
        return real(self, batch)

    monkeypatch.setattr(Trainer, "step", dies_in_the_second_epoch)
    with pytest.raises(KeyboardInterrupt):
        effssl.pretrain("digits", objective, epochs=3, out=tmp_path / "cut", **quick)
    monkeypatch.setattr(Trainer, "step", real)
    cut = effssl.pretrain("digits", objective, epochs=3, out=tmp_path / "cut", resume="auto", **quick)

    a, b = load_file(whole.encoder_path), load_file(cut.encoder_path)
    assert all(torch.equal(a[key], b[key]) for key in a)

    def without_time(run: effssl.Run) -> list[dict]:
        return [{k: v for k, v in line.items() if k != "seconds"} for line in run.metrics()]

    assert without_time(whole) == without_time(cut)


def test_resume_auto_starts_and_ends(finished: effssl.Run) -> None:
    before = finished.encoder_path.read_bytes()
    again = effssl.pretrain("digits", "byol+rotation", epochs=4, out=finished.folder, resume="auto", **QUICK)
    assert again.encoder_path.read_bytes() == before
    with pytest.raises(RequestError, match=r"epochs: 4 → 3"):  # more would train it longer
        effssl.pretrain("digits", "byol+rotation", epochs=3, out=finished.folder, resume="auto", **QUICK)


def test_a_damaged_checkpoint_is_noticed_and_the_previous_used(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = effssl.pretrain("digits", "byol", epochs=3, out=tmp_path / "r", **QUICK)
    good = load_file(run.encoder_path)
    run.encoder_path.unlink()
    content = bytearray(run.checkpoint_path.read_bytes())
    content[len(content) // 2] ^= 1
    run.checkpoint_path.write_bytes(content)
    again = effssl.pretrain("digits", "byol", epochs=3, out=tmp_path / "r", resume="auto", **QUICK)
    assert "damaged" in capsys.readouterr().err
    assert all(torch.equal(value, good[key]) for key, value in load_file(again.encoder_path).items())


def test_nothing_is_overwritten(finished: effssl.Run, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in finished.folder.iterdir()}
    with pytest.raises(RequestError, match="exists and is finished"):
        effssl.pretrain("digits", "byol", epochs=1, out=finished.folder, **QUICK)
    assert {path.name: path.read_bytes() for path in finished.folder.iterdir()} == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    for resume in ("never", "auto"):
        with pytest.raises(RequestError, match="not a run folder"):
            effssl.pretrain("digits", "byol", epochs=1, out=tmp_path / "mine", resume=resume, **QUICK)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"not finite.*smaller lr="):
        effssl.pretrain("digits", "simclr", epochs=3, lr=1e20, out=tmp_path / "r", **QUICK)
    assert not (tmp_path / "r" / "encoder.safetensors").exists()


def test_weights_that_are_not_finite_stop_the_run_too(tmp_path: Path) -> None:
    """One step per epoch: the loss is finite, the update is not, and the next to notice is the evaluation."""
    with pytest.raises(RunFailed, match="not finite"):
        effssl.pretrain("digits", "simclr", epochs=2, lr=1e20, out=tmp_path / "r", **QUICK | {"batch_size": 512})


def test_a_run_killed_before_its_first_checkpoint_starts_its_log_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from effssl.training import saving

    def no_disk(path: Path, state: dict) -> None:
        raise OSError(28, "No space left on device")

    settings = {"epochs": 3, "out": tmp_path / "r", "checkpoint_every": 2, **QUICK}
    with monkeypatch.context() as patch:
        patch.setattr(saving, "save_checkpoint", no_disk)
        with pytest.raises(RunFailed, match=r"No space left on device while writing.*free some space"):
            effssl.pretrain("digits", "byol", **settings)
    with (tmp_path / "r" / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "lo')  # half a line
    run = effssl.pretrain("digits", "byol", resume="auto", **settings)
    assert [line["epoch"] for line in run.metrics()] == [0, 1, 2, 3]


def test_images_that_changed_are_noticed_on_resume(finished: effssl.Run, tmp_path: Path) -> None:
    import shutil

    import numpy as np

    images = np.random.default_rng(0).integers(0, 256, (64, 16, 16, 3), np.uint8)
    np.save(tmp_path / "a.npy", images)
    settings = {"epochs": 1, "out": tmp_path / "r", "quiet": True, "batch_size": 32}
    run = effssl.pretrain(str(tmp_path / "a.npy"), "byol", **settings)
    run.encoder_path.unlink()
    shutil.move(tmp_path / "a.npy", tmp_path / "old.npy")
    np.save(tmp_path / "a.npy", images[::-1])
    with pytest.raises(RequestError, match="images have changed"):
        effssl.pretrain(str(tmp_path / "a.npy"), "byol", resume="auto", **settings)


def test_the_device_of_a_config_file_counts(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("device: cuda:7\n")
    with pytest.raises(RequestError, match="cuda:7"):
        effssl.pretrain("digits", "byol", config=tmp_path / "c.yaml", out=tmp_path / "r", **QUICK)


def test_rotated_views_that_an_encoder_does_not_take_are_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    settings = QUICK | {"encoder": "vit_b_16", "image_size": 32}
    with pytest.raises(RequestError, match=r"vit_b_16 \(views\.rotated\) does not take"):
        effssl.pretrain("digits", "byol+rotation", recipe="cpu-byol-efficient", out=tmp_path / "r", **settings)
    growing = settings | {"schedule": {"grow_from": 0.5}}
    with pytest.raises(RequestError, match=r"vit_b_16 \(views\.growing\) does not take"):
        effssl.pretrain("digits", "byol", recipe="cpu-byol", out=tmp_path / "r", **growing)
    assert not (tmp_path / "r").exists()


def test_a_batch_that_the_images_cannot_fill_is_smaller_unless_it_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    few = {"subset": 42, "epochs": 1, "encoder": "tiny", "report": False, "out": tmp_path / "r"}
    run = effssl.pretrain("digits", "simclr", **few)
    assert run.config.batch_size == 10
    assert "42 images: batches of 10, since 128 are more than there are" in capsys.readouterr().err
    assert effssl.pretrain("digits", "simclr", resume="auto", **few).finished
    with pytest.raises(RequestError, match=r"batch size 64 is larger than the set of 42 images; use batch_size=10"):
        effssl.pretrain("digits", "simclr", batch_size=64, **few | {"out": tmp_path / "other"})


def test_embed_shows_images_upright(finished: effssl.Run, tmp_path: Path) -> None:
    from PIL import Image

    encoder = finished.encoder()
    photo = Image.linear_gradient("L").resize((40, 40)).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6
    photo.save(tmp_path / "turned.png", exif=exif)
    turned = encoder.embed([Image.open(tmp_path / "turned.png")])
    assert torch.allclose(turned, encoder.embed([photo.rotate(-90)]), atol=1e-5)
    assert not torch.allclose(turned, encoder.embed([photo]), atol=1e-3)


def test_simsiam_without_stop_gradient_is_called_collapsed(tmp_path: Path) -> None:
    settings = QUICK | {"health": {"every": 2}, "simsiam": {"stop_gradient": False}}
    run = effssl.pretrain("digits", "simsiam", epochs=8, out=tmp_path / "r", lr=0.1, **settings)
    last = run.metrics()[-1]
    assert last["verdict"] == "collapsing", last
    healthy = effssl.pretrain("digits", "simsiam", epochs=8, out=tmp_path / "h", lr=0.1, **QUICK).metrics()[-1]
    assert healthy["verdict"] != "collapsing", healthy


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_trains(tmp_path: Path, precision: str) -> None:
    run = effssl.pretrain("digits", "byol+rotation", epochs=2, out=tmp_path / "r", precision=precision, **QUICK)
    assert run.metrics()[-1]["loss/rotation"] < 1.4


def test_fp16_overflow_skips_the_step_and_moves_nothing(tmp_path: Path) -> None:
    from effssl.data import open_data
    from effssl.recipes import resolve
    from effssl.training.pretraining import fit_to_data

    data = open_data("digits")
    plan = fit_to_data(resolve({"data": "digits", "objective": "byol+rotation", "precision": "fp16"}), data)
    trainer = Trainer(plan, data, torch.device("cpu"))
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1)
    before = {key: value.clone() for key, value in trainer.objective.state_dict().items()}
    trainer.step(next(trainer.loader.epoch(0)))
    assert trainer.position.updates == 0
    for key, value in trainer.objective.state_dict().items():
        if not key.endswith(("running_mean", "running_var", "num_batches_tracked")):
            assert torch.equal(value, before[key]), key
    assert trainer.scaler.get_scale() == 2.0**126
    assert "scale" in trainer.state()["scaler"]


def test_whitened_features_are_those_of_the_run_and_can_be_left_out(tmp_path: Path) -> None:
    run = effssl.pretrain("digits", "simclr+words", epochs=1, out=tmp_path / "run", **QUICK | DERIVED)
    encoder, images = effssl.load(run.folder), effssl.open_data("digits").test.pixels[:8]
    assert encoder(images).shape == (8, 48)
    assert effssl.load(run.folder, whiten="off")(images).shape == (8, 128)
    assert run.knn(k=20).accuracy != run.knn(k=20, whiten="off").accuracy
    assert {"knn k=20", "knn k=20 whiten=off"} <= run.results().keys()
    with pytest.raises(effssl.RequestError, match="whiten is on or off, not 'yes'"):
        effssl.load(run.folder, whiten="yes")


def test_a_run_stands_beside_what_costs_nothing(finished: effssl.Run) -> None:
    first, second, *others = finished.metrics()
    assert 0 < second["baseline/pixels"] <= 100
    assert 0 < second["baseline/patches"] <= 100
    assert not any(key.startswith("baseline/") for line in (first, *others) for key in line)
    score, baselines = finished.scores("knn", baselines=True, k=20)
    assert baselines.keys() == {"untrained", "patches", "pixels"}
    assert {
        "knn k=20",
        "knn of untrained k=20",
        "knn of patches k=20",
        "knn of pixels k=20",
    } <= finished.results().keys()
    assert score.value > 50
    assert score.constants["chance"] == pytest.approx(10, abs=2)
    before = finished.results()
    with pytest.raises(effssl.RequestError, match="probe-contrastive has no baselines"):
        finished.scores("probe-contrastive", baselines=True)
    assert finished.results() == before


def test_eval_says_how_the_run_compared(finished: effssl.Run, capsys: pytest.CaptureFixture) -> None:
    main(["eval", "knn", str(finished.folder), "--k", "20", "--no-baselines"])
    said = capsys.readouterr().out
    assert re.search(r"│ chance +│ +1\d\.\d\d %", said)
    names = ("untrained network", "k-means patches", "raw pixels", "chance")
    assert re.search(f"while it was trained: kNN .* %.*{'.*'.join(f'{name} .*' for name in names)}", said)


def test_patches_are_computed_not_trained(tmp_path: Path) -> None:
    run = effssl.pretrain("digits", encoder="patches-20", out=tmp_path / "run", quiet=True, subset=512)
    assert len(run.metrics()) == 1
    assert run.encoder().dim == 160
    assert run.knn(k=20).accuracy > 60
    assert run.config.whiten == "on"
    plain = effssl.pretrain(
        "digits", encoder="patches-20", out=tmp_path / "plain", quiet=True, subset=512, whiten="off"
    )
    assert plain.encoder().encoder.readout is None
