"""Runs on images of other channels and depths: what they learn, and what is computed, given, kept and refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import effssl
from effssl.augment.pixel_format import PixelFormat
from effssl.cli import main
from effssl.data import open_data
from effssl.features.whitening import pixel_encoder
from effssl.recipes.resolve import resolve
from effssl.report import write_report
from effssl.runtime.errors import RequestError
from effssl.schema import read_yaml
from effssl.training.pretraining import fit_to_data, make_plan
from effssl.training.request import Request
from effssl.training.trainer import Trainer

PLAIN = ["--encoder", "tiny", "--epochs", "1", "--batch-size", "64", "--device", "cpu", "--workers", "0"]


def digits_of(channels: int, count: int = 1797) -> tuple[np.ndarray, np.ndarray]:
    """Digits as N×16×16×C of 16 bits: each image has its own light, and each channel its own response to it."""
    raw, rng = load_digits(), np.random.default_rng(0)
    shapes = raw.images[:count, :, :, None].repeat(2, 1).repeat(2, 2) / 16
    gain, offset = rng.uniform(300, 2500, (count, 1, 1, 1)), rng.uniform(0, 3000, (count, 1, 1, 1))
    of_shape, of_ground = np.linspace(1, 0.4, channels), np.linspace(0.4, 1, channels)
    noise = rng.normal(0, 60, (count, 16, 16, channels))
    return (shapes * gain * of_shape + offset * of_ground + noise).clip(0, 65535).astype(np.uint16), raw.target[:count]


def save(path: Path, channels: int, count: int = 1797) -> None:
    images, labels = digits_of(channels, count)
    cut = count * 3 // 4
    np.savez(path, images=images[:cut], labels=labels[:cut], test_images=images[cut:], test_labels=labels[cut:])


def test_twelve_channels_train_resume_evaluate_embed_and_export(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(in_tmp / "bands.npz", 12, 200)
    flags = ["--data", "bands.npz", "--out", "run", "--objective", "simsiam+rotation", *PLAIN]
    main(["pretrain", *flags, "--augment.channel-dropout", "0.2", "--augment.pixels.shown", "8", "4", "3"])
    said = capsys.readouterr()
    assert "12 channels of uint16: mean and deviation of each channel, on 150 images" in said.out + said.err
    config = read_yaml(in_tmp / "run/config.yaml")["augment"]
    assert config["pixels"] == {"channels": 12, "depth": "uint16", "range": [0.0, 65535.0], "shown": [8, 4, 3]}
    images = open_data("bands.npz").train.pixels.double() / 65535
    assert np.allclose(config["mean"], images.mean((0, 2, 3)), rtol=1e-4)
    assert np.allclose(config["std"], images.std((0, 2, 3), correction=0), rtol=1e-4)
    main(["pretrain", *flags, "--augment.channel-dropout", "0.2", "--resume", "auto"])
    encoder = effssl.load("run")
    assert encoder.pixels == PixelFormat(12, "uint16", (0.0, 65535.0), (8, 4, 3))
    assert encoder.backbone.conv1.weight.shape[1] == 12
    some = open_data("bands.npz").test.pixels[:5]
    assert torch.equal(encoder(some), encoder(some.float() / 65535))
    main(["eval", "knn", "run"])
    assert "accuracy" in capsys.readouterr().out
    assert pixel_encoder(encoder)(some).shape == (5, 12 * 16 * 16)
    main(["embed", "run", "--data", "bands.npz", "--out", "bands.npz.csv"])
    page = write_report("run", images=40, shown=(1,)).read_text(encoding="utf-8")
    assert "Images are not shown" not in page
    with pytest.raises(SystemExit) as stop:
        main(["report", "run", "--images", "40", "--shown", "13"])
    assert stop.value.code == 2
    assert "give one or three, of 1 to 12" in capsys.readouterr().err
    assert (in_tmp / "run/report.html").read_text(encoding="utf-8") == page
    card = effssl.export("run", "safetensors").with_name("run.safetensors.md").read_text(encoding="utf-8")
    assert "images N×12×H×W of any size" in card
    assert "12 channels of uint16, of which 0 and 65535 become 0 and 1" in card
    with pytest.raises(RequestError, match="the images have RGB of 8 bits, and the encoder takes 12 channels"):
        effssl.evaluate("knn", encoder, "digits")
    with pytest.raises(RequestError, match="not PIL images"):
        encoder.embed([Image.new("RGB", (16, 16))])


def test_what_is_given_is_kept_and_what_does_not_fit_is_refused(in_tmp: Path) -> None:
    save(in_tmp / "bands.npz", 4, 120)
    data = open_data("bands.npz")
    request = {"data": "bands.npz", "objective": "simsiam", "encoder": "tiny", "batch_size": 32}

    def fitted(**augment):
        return fit_to_data(resolve(request | {"augment": augment}), data).config.augment

    given = fitted(mean=(0.1, 0.2, 0.3, 0.4), std=(0.5,) * 4)
    assert (given.mean, given.std) == ((0.1, 0.2, 0.3, 0.4), (0.5,) * 4)
    assert fitted(pixels={"range": (0, 4095)}).mean[0] > 10 * fitted().mean[0]
    for augment, says in (
        ({"mean": (0.1,) * 5, "std": (0.1,) * 5}, "augment.mean has 5 values, and the images have 4 channels"),
        ({"pixels": {"channels": 7}}, "augment.pixels.channels is 7, and the images have 4 channels of uint16"),
        ({"pixels": {"range": (5, 5)}}, "give a smaller and a larger value"),
        ({"pixels": {"shown": (5,)}}, "give one or three, of 1 to 4"),
        ({"jitter_by": "color"}, "needs red, green and blue"),
    ):
        with pytest.raises(RequestError, match=says):
            fitted(**augment)


def weights_for(channels: int, folder: Path) -> str:
    """The run folder of an encoder that was trained for a step or two on such images."""
    data = "digits" if channels == 3 else f"{channels}.npz"
    if channels != 3:
        save(folder / data, channels, 150)
    flags = {"encoder": "tiny", "epochs": 1, "batch_size": 32, "quiet": True, "report": False, "subset": 64}
    return str(effssl.pretrain(data, "simsiam", out=folder / "weights", **flags).folder)


@pytest.mark.parametrize(
    ("old", "new", "adapted"),
    [
        (1, 3, "gray filters for 3 channels"),
        (3, 4, "the mean of filters of 3 channels for 4 channels"),
        (1, 4, "gray filters for 4 channels"),
        (4, 3, "is for images of 4 channels; images here have 3"),
    ],
)
def test_weights_for_other_channels_are_adapted_or_refused_as_such(
    old: int, new: int, adapted: str, in_tmp: Path
) -> None:
    """Nobody gave a mean: that of the weights does not fit, so it is the recipe's for pictures, else it is measured."""
    start, name = weights_for(old, in_tmp), "digits" if new == 3 else "new.npz"
    if new != 3:
        save(in_tmp / name, new, 120)
    request = {"data": name, "objective": "simsiam", "batch_size": 32, "start_from": start}
    data, cpu = open_data(name), torch.device("cpu")
    plan = fit_to_data(make_plan(Request(request), cpu), data)
    augment = plan.config.augment
    if new == 3:
        assert augment.mean == resolve({"data": name, "objective": "simsiam"}).config.augment.mean
    else:
        images = data.train.pixels.double() / 65535
        assert np.allclose(augment.mean, images.mean((0, 2, 3)), rtol=1e-4)
    assert len(augment.std) == new
    if old == 4:
        with pytest.raises(RequestError, match=adapted):
            Trainer(plan, data, cpu)
    else:
        assert adapted in Trainer(plan, data, cpu).objective.start_note
    given = {"mean": (0.2,) * new, "std": (0.3,) * new}
    chosen = fit_to_data(make_plan(Request(request | {"augment": given}), cpu), data).config.augment
    assert (chosen.mean, chosen.std) == (given["mean"], given["std"])


def test_pictures_have_the_mean_of_the_recipe() -> None:
    plan = resolve({"data": "digits", "objective": "simsiam"})
    fitted = fit_to_data(plan, open_data("digits"))
    assert fitted.config.augment == plan.config.augment
    assert fitted.notes == plan.notes


def test_a_channel_that_is_the_same_everywhere_is_no_reason_to_fail(in_tmp: Path) -> None:
    images = digits_of(2, 64)[0]
    images[..., 1] = 77
    np.save("flat.npy", images)
    request = {"data": "flat.npy", "objective": "simsiam", "encoder": "tiny", "batch_size": 32}
    augment = fit_to_data(resolve(request), open_data("flat.npy")).config.augment
    assert augment.std[1] == 1


def test_the_range_of_floats_is_said(in_tmp: Path) -> None:
    np.save("flat.npy", digits_of(2, 64)[0].astype(np.float32) - 100)
    plan = fit_to_data(resolve({"data": "flat.npy", "objective": "simsiam", "batch_size": 32}), open_data("flat.npy"))
    low, high = plan.config.augment.pixels.range
    assert any(f"2 channels of float32, of which {low:g} and {high:g} become 0 and 1: mean" in n for n in plan.notes)


def fit_stack(stack: np.ndarray, **augment) -> PixelFormat:
    np.save("stack.npy", stack.astype(np.float32))
    request = {"data": "stack.npy", "objective": "simsiam", "encoder": "tiny", "batch_size": 4, "augment": augment}
    return fit_to_data(resolve(request), open_data("stack.npy")).config.augment.pixels


def test_an_image_far_from_the_others_is_refused(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stack = np.random.default_rng(0).random((240, 70, 70, 2), np.float32)
    (in_tmp / "d").mkdir()
    for i in range(9):
        np.save(in_tmp / f"d/{i}.npy", stack[i])
    np.save(in_tmp / "d/4.npy", stack[4] * 255)
    with pytest.raises(SystemExit) as stop:
        main(["pretrain", "--data", "d", "--objective", "simsiam", "--out", "run", *PLAIN, "--batch-size", "4"])
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert stop.value.code == 2
    assert "4.npy has values from 0." in said
    assert "--augment.pixels.range" in said
    data = open_data("d")
    chosen = {"data": "d", "objective": "simsiam", "encoder": "tiny", "batch_size": 4}
    augment = {"pixels": {"range": (0, 1)}}
    assert fit_to_data(resolve(chosen | {"augment": augment}), data).config.augment.pixels.range == (0, 1)
    for number in (17, 203):  # one of them is in the sample of 100, or none
        far = stack[:, :16, :16].copy()
        far[number, 3, 3, 0] = -1e6
        with pytest.raises(RequestError, match=rf"image {number} \(the first is 0\) has values from -1e\+06"):
            fit_stack(far)


def test_a_high_dynamic_range_is_read(in_tmp: Path) -> None:
    rng = np.random.default_rng(0)
    stack = rng.random((60, 16, 16, 2)) * rng.uniform(1, 10_000, (60, 1, 1, 1))
    stack[7, 2, 2] = 65_000  # a hot pixel
    assert fit_stack(stack).range[1] == 65_000
    stars = rng.random((60, 16, 16, 2))
    stars[::3, 5, 5] = 10_000
    assert fit_stack(stars).range[1] == 10_000
    assert fit_stack(np.zeros((60, 16, 16, 2))).range == (0, 1)


@pytest.mark.parametrize("channels", [1, 12])
def test_images_of_16_bits_are_learned_from(in_tmp: Path, channels: int) -> None:
    """kNN on features of the test images: above that of the untrained network."""
    save(in_tmp / "deep.npz", channels)
    effssl.pretrain(
        data="deep.npz", objective="simclr", encoder="tiny", epochs=16, batch_size=64, out="run", device="cpu",
        report=False, health={"every": 100},
        augment={"scale": (0.5, 1.0), "flip": 0.0, "jitter": 1.0, "brightness": 0.8, "contrast": 0.8},
    )  # fmt: skip
    from effssl.features.whitening import untrained_encoder

    trained = effssl.load("run")
    untrained = untrained_encoder(open_data("deep.npz").train, trained)
    before, after = (effssl.evaluate("knn", encoder, "deep.npz").value for encoder in (untrained, trained))
    assert after > before + 10
