"""--precision auto: what it chooses is written down, said in one line, and kept by a resumed run."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

import effssl
from effssl.data import ArrayImages, Data
from effssl.recipes import resolve
from effssl.runtime.errors import RequestError
from effssl.training.precision import (
    MIN_COSINE,
    MIN_SPEEDUP,
    choose_precision,
    compare,
    decide,
    gradient_cosine,
    try_steps,
)
from effssl.training.trainer import Trainer
from tests.training.test_distribution import TORCHRUN, start

CPU = torch.device("cpu")
TINY = {"encoder": "tiny", "batch_size": 32, "subset": 128, "epochs": 2}
NOTE = re.compile(r"^precision (\w+): .+$", re.MULTILINE)


@pytest.fixture(scope="module")
def gradient() -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=g) for shape in ((8, 3, 3, 3), (8,), (10, 8))]


def test_the_cosine_is_that_of_all_weights_as_one_vector(gradient: list[Tensor]) -> None:
    other = [x + 0.3 * x.flip(0) for x in gradient]
    one, two = (torch.cat([x.flatten() for x in grads]) for grads in (gradient, other))
    assert gradient_cosine(gradient, other) == pytest.approx(float(F.cosine_similarity(one, two, dim=0)), abs=1e-6)
    assert gradient_cosine(gradient, [1e-4 * x for x in gradient]) == pytest.approx(1.0)
    assert gradient_cosine(gradient, [-x for x in gradient]) == pytest.approx(-1.0)


def test_rounded_gradients_agree_and_others_do_not(gradient: list[Tensor]) -> None:
    assert gradient_cosine(gradient, [x.bfloat16().float() for x in gradient]) > 0.999
    assert gradient_cosine(gradient, [x.flip(0) for x in gradient]) < MIN_COSINE


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_agrees_with_nothing(gradient: list[Tensor], value: float) -> None:
    broken = [x.clone() for x in gradient]
    broken[1][3] = value
    for pair in ((gradient, broken), (broken, gradient), (broken, broken)):
        assert math.isnan(gradient_cosine(*pair))
    assert math.isnan(gradient_cosine(gradient, [torch.zeros_like(x) for x in gradient]))


@pytest.mark.parametrize(
    ("cosine", "float32", "bf16", "chosen", "why"),
    [
        (0.998, 0.034, 0.021, "bf16", "1.6 times as fast as float32, and gradients agree (cosine 0.998)"),
        (MIN_COSINE, MIN_SPEEDUP, 1.0, "bf16", "agree"),
        (0.998, 0.021, 0.034, "float32", "not faster here (34 against 21 ms a step)"),
        (0.998, 0.021, 0.021, "float32", "not faster here"),
        (0.998, 0.022, 0.021, "float32", "hardly faster here (21 against 22 ms a step)"),
        (0.85, 0.034, 0.021, "float32", "differ too much (cosine 0.850"),
        (-1.0, 0.034, 0.021, "float32", "differ too much"),
        (math.nan, 0.034, 0.021, "float32", "differ too much (cosine nan"),
    ],
)
def test_decisions(cosine: float, float32: float, bf16: float, chosen: str, why: str) -> None:
    precision, said = decide(cosine, float32, bf16)
    assert precision == chosen
    assert why in said


def test_a_gpu_takes_bf16_if_gradients_agree() -> None:
    assert decide(0.99, 0.02, 0.03, speedup=0.0)[0] == "bf16"
    assert decide(0.5, 0.03, 0.02, speedup=0.0)[0] == "float32"


def test_gradients_of_a_step_are_those_of_the_initial_weights(tiny_photos: Tensor) -> None:
    """By autograd alone, on the same views; and bf16 agrees with it better than another batch does."""
    settings = {"data": "x", "objective": "simclr+rotation", "encoder": "tiny", "image_size": 24, "batch_size": 64}
    data = Data("photos", ArrayImages(tiny_photos))
    full, same, half = (
        Trainer(resolve(settings | {"precision": p}), data, CPU) for p in ("float32", "float32", "bf16")
    )
    views, others = list(full.loader.epoch(0))[:2]
    weights = [p for p in same.objective.network.parameters() if p.requires_grad]
    expected = [g for g in torch.autograd.grad(same.objective(views)[0], weights, allow_unused=True) if g is not None]
    found = try_steps(full, views)
    assert gradient_cosine(found.gradient, expected) == pytest.approx(1.0, abs=1e-6)
    rounded = gradient_cosine(try_steps(half, views).gradient, expected)
    elsewhere = try_steps(Trainer(resolve(settings), data, CPU), others).gradient
    assert rounded > MIN_COSINE
    assert rounded > gradient_cosine(elsewhere, expected)


def test_dropout_is_the_same_in_both(tiny_photos: Tensor) -> None:
    settings = {"data": "x", "objective": "simclr", "encoder": "tiny", "image_size": 24, "batch_size": 8}
    data = Data("photos", ArrayImages(tiny_photos[:16]))
    one, two = (Trainer(resolve(settings), data, CPU) for _ in range(2))
    views = next(one.loader.epoch(0))
    for trainer in (one, two):
        trainer.objective.network.encoder = torch.nn.Sequential(
            trainer.objective.network.encoder, torch.nn.Dropout(0.5)
        )
    assert gradient_cosine(try_steps(one, views).gradient, try_steps(two, views).gradient) == pytest.approx(1.0)


@pytest.mark.parametrize(("limit", "steps"), [(math.inf, 4), (0.0, 2)])
def test_hopeless_steps_are_not_taken(
    limit: float, steps: int, tiny_photos: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"data": "x", "objective": "simclr", "encoder": "tiny", "image_size": 24, "batch_size": 16}
    trainer = Trainer(resolve(settings), Data("photos", ArrayImages(tiny_photos[:32])), CPU)
    calls, real = [], Trainer.step
    monkeypatch.setattr(Trainer, "step", lambda self, views: (calls.append(1), real(self, views))[1])
    try_steps(trainer, next(trainer.loader.epoch(0)), limit)
    assert len(calls) == steps


def test_a_comparison_decides_and_says_why(tiny_photos: Tensor) -> None:
    """On whichever machine, also where a run would not even try: views that grow are compared at full size."""
    grow = {"grow_from": 0.5, "warmup_epochs": 0}
    settings = {"data": "x", "objective": "byol+rotation", "encoder": "tiny", "image_size": 24, "batch_size": 32}
    plan = resolve(settings | {"precision": "auto", "schedule": grow})
    precision, why = compare(plan, Data("photos", ArrayImages(tiny_photos)), CPU)
    expected = {"bf16": r"takes [\d.,]+ ms, [\d.]+ times as fast .*agree", "float32": r"faster here \(.* ms a step\)"}
    assert re.search(expected[precision], why)


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_a_given_precision_is_left_alone(precision: str, tiny_photos: Tensor) -> None:
    plan = resolve({"data": "x", "objective": "byol", "precision": precision})
    assert choose_precision(plan, Data("photos", ArrayImages(tiny_photos)), CPU) is plan


def test_other_devices_stay_in_float32(tiny_photos: Tensor) -> None:
    plan = resolve({"data": "x", "objective": "byol", "precision": "auto"})
    chosen = choose_precision(plan, Data("photos", ArrayImages(tiny_photos)), torch.device("mps"))
    assert chosen.config.precision == "float32"
    assert chosen.notes[-1] == "precision float32: bf16 is not tried on mps"


def test_auto_is_written_said_and_changes_nothing_else(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    """A run with auto is, to the bit, one with the precision that it chose; views that grow are not disturbed."""
    settings = TINY | {"schedule": {"grow_from": 0.5, "warmup_epochs": 0}}
    run = effssl.pretrain("digits", "byol+rotation", out=tmp_path / "auto", precision="auto", **settings)
    said = NOTE.findall(capfd.readouterr().err)
    assert said == [run.config.precision]
    assert run.config.precision in ("float32", "bf16")
    assert f"precision: {run.config.precision}\n" in run.config_path.read_text()
    given = effssl.pretrain(
        "digits", "byol+rotation", out=tmp_path / "given", precision=said[0], quiet=True, **settings
    )
    assert given.config == run.config
    a, b = load_file(run.encoder_path), load_file(given.encoder_path)
    assert all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_a_resumed_run_keeps_its_precision_to_the_bit(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """Whichever one this machine would choose now: at least two of the three are not it."""
    whole = effssl.pretrain("digits", "byol", out=tmp_path / "whole", precision=precision, quiet=True, **TINY)
    real, calls = Trainer.step, 0

    def dies_in_the_second_epoch(self, views):
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return real(self, views)

    monkeypatch.setattr(Trainer, "step", dies_in_the_second_epoch)
    with pytest.raises(KeyboardInterrupt):
        effssl.pretrain("digits", "byol", out=tmp_path / "cut", precision=precision, quiet=True, **TINY)
    for line in (f"precision {precision}: as when the run was started", "is finished"):
        capfd.readouterr()
        cut = effssl.pretrain("digits", "byol", out=tmp_path / "cut", precision="auto", resume="auto", **TINY)
        assert line in capfd.readouterr().err
    assert calls == 6 + 4  # those of the second epoch: none was only for timing
    assert cut.config.precision == precision
    assert cut.encoder_path.read_bytes() == whole.encoder_path.read_bytes()


def test_a_recipe_may_ask_for_it(tmp_path: Path) -> None:
    recipe = tmp_path / "auto.yaml"
    recipe.write_text("encoder: tiny\nbatch_size: 32\nepochs: 1\nprecision: auto\nschedule: {warmup_epochs: 0}\n")
    run = effssl.pretrain("digits", "simsiam", recipe=str(recipe), subset=64, out=tmp_path / "r", quiet=True)
    assert run.config.precision in ("float32", "bf16")
    mine = effssl.objective("simsiam", recipe=str(recipe), image_size=16)
    assert mine.config.precision == "float32"


def test_a_loop_of_your_own_does_not_try_steps() -> None:
    with pytest.raises(RequestError, match="here choose float32, bf16 or fp16"):
        effssl.objective("simsiam", precision="auto", image_size=16)


def test_a_time_budget_is_planned_in_the_chosen_precision(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    run = effssl.pretrain(
        "digits", "byol", encoder="tiny", batch_size=32, subset=128, budget="8s", precision="auto", out=tmp_path / "r"
    )
    said = capfd.readouterr().err
    assert said.index("precision ") < said.index("8s chose about")
    assert run.config.precision in ("float32", "bf16")
    assert run.finished


TWO_PROCESSES = """
import sys, torch, effssl
from effssl.recipes import resolve
from effssl.runtime.distribution import process_group, rank
from effssl.training.precision import compare
from effssl.training.pretraining import fit_to_data
flags = {"objective": "byol", "encoder": "tiny", "batch_size": 32, "precision": "auto"}
with process_group():
    data = effssl.open_data("digits")
    found = compare(fit_to_data(resolve(flags | {"data": "digits"}), data), data, torch.device("cpu"))
    open(f"{sys.argv[1]}/{rank()}", "w").write(repr(found))
"""


@pytest.mark.long
def test_two_processes_choose_alike(tmp_path: Path) -> None:
    script = tmp_path / "compare.py"
    script.write_text(TWO_PROCESSES)
    running = start(*TORCHRUN, str(script), str(tmp_path))
    said, _ = running.communicate(timeout=300)
    assert running.returncode == 0, said[-9000:]
    assert (tmp_path / "0").read_text() == (tmp_path / "1").read_text() != ""
    command = ["-m", "effssl", "pretrain", "--data", "digits", "--objective", "byol", "--encoder", "tiny"]
    command += ["--batch-size", "32", "--subset", "64", "--epochs", "1", "--precision", "auto"]
    running = start(*TORCHRUN, *command, "--out", str(tmp_path / "r"))
    said, _ = running.communicate(timeout=300)
    assert running.returncode == 0, said[-2000:]
    assert NOTE.findall(said) == [effssl.Run(tmp_path / "r").config.precision]
