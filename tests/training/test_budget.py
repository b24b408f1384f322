"""A run that fits into a given time, and views that grow on the way."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torchvision.transforms.functional import to_pil_image

import effssl
from effssl.data import ArrayImages, Data
from effssl.data.views import Views
from effssl.recipes import resolve
from effssl.recipes.budgets import parse_budget
from effssl.runtime.errors import RequestError
from effssl.training.budget import Budget, StepCosts, timed_steps
from effssl.training.checkpoint import load_checkpoint, save_checkpoint
from effssl.training.trainer import Trainer

CPU = torch.device("cpu")


def trainer(pixels: Tensor, **flags) -> Trainer:
    base = {"data": "x", "objective": "byol+rotation", "image_size": 32, "batch_size": 32, "epochs": 10}
    return Trainer(resolve(base | flags), Data("photos", ArrayImages(pixels)), CPU)


def move(trainer: Trainer, **position: float) -> None:
    """As if a run had come so far, by its checkpoint."""
    state = trainer.state()
    trainer.restore(state | {"position": state["position"] | position})


@pytest.mark.parametrize("text", ["", "ten minutes", "10", "m", "-5m", "1h 30", "0s"])
def test_what_is_not_a_time(text: str) -> None:
    with pytest.raises(RequestError, match="budget"):
        parse_budget(text)


def test_time_is_kept_for_the_report() -> None:
    assert [Budget(seconds, 0.0, report=True).seconds for seconds in (40.0, 600.0)] == [35.0, 592.0]


def test_views_of_files_grow_too(photos: Tensor, tmp_path: Path) -> None:
    for i, image in enumerate(photos[:8]):
        to_pil_image(image).save(tmp_path / f"{i}.png")
    grow = {"grow_from": 0.5, "grow_until": 1.0, "warmup_epochs": 0}
    plan = resolve(
        {
            "data": "x",
            "objective": "byol",
            "image_size": 64,
            "batch_size": 4,
            "epochs": 2,
            "schedule": grow,
            "workers": 0,
        }
    )
    t = Trainer(plan, effssl.open_data(str(tmp_path)), CPU)
    assert [next(t.loader.epoch(epoch)).pixels["large"].shape[-1] for epoch in (0, 1)] == [32, 48]


def test_small_views_cost_less_and_are_counted(tiny_photos: Tensor) -> None:
    t = trainer(tiny_photos[:128], schedule={"grow_from": 0.5, "grow_until": 0.8, "warmup_epochs": 0})
    for epoch in (0, 9):
        t.train_step(next(t.loader.epoch(epoch)))
    small, full = t.position.step_flops.values()
    assert small < 0.6 * full


def test_the_number_of_steps_follows_the_pace(tiny_photos: Tensor) -> None:
    t = trainer(tiny_photos[:128])
    budget = Budget(10_000.0, time.monotonic())
    budget.costs = StepCosts((10.0,) * 20, t.clock.steps_per_epoch)
    budget.begin(t, 1)
    assert t.clock.total_steps == pytest.approx(1000, rel=0.02)
    move(t, epoch=25, seconds=2_000.0)  # 100 steps, which took twice as long as they should have
    budget.replan(t)
    assert t.clock.total_steps == pytest.approx(100 + 500, rel=0.02)


def test_short_epochs_are_counted_anew_too(tiny_photos: Tensor) -> None:
    t = trainer(tiny_photos[:128])  # 4 steps an epoch
    budget = Budget(10_000.0, time.monotonic())
    t.clock.set_total_steps(1000)
    due = []
    for step in range(1, 101):
        move(t, epoch=step // 4, step=step % 4)
        due.append(budget.due(t))
    assert sum(due) == 5  # every 20 steps, whatever an epoch holds
    t.clock.set_total_steps(110)
    assert budget.due(t)  # a short run is counted more often


def test_a_short_run_ends_when_its_time_is_over(tiny_photos: Tensor) -> None:
    t = trainer(tiny_photos[:128])  # 4 steps an epoch
    over = Budget(10.0, time.monotonic() - 100)
    over.costs = StepCosts((0.1,) * 20, t.clock.steps_per_epoch)
    for views in t.loader.epoch(0):
        t.train_step(views)
        if over.due(t):
            over.replan(t)
        if t.finished:
            break
    assert t.steps_done == 2  # the one after which the steps were counted anew, and one that ends the schedule


def test_the_largest_views_that_leave_enough_epochs(photos: Tensor, tmp_path: Path) -> None:
    for i, image in enumerate(photos[:8]):
        to_pil_image(image).save(tmp_path / f"{i}.png")
    settings = {"data": "x", "objective": "byol+rotation", "batch_size": 4, "lr": 0.1, "workers": 0, "image_size": 32}
    data = effssl.open_data(str(tmp_path))
    long = Budget(parse_budget("10000h"), time.monotonic())
    assert long.fit(resolve(settings | {"budget": "10000h"}), data, CPU, choose_size=True).config.image_size == 128
    over = Budget(600.0, time.monotonic() - 600)
    with pytest.raises(RequestError, match="passed before training"):
        over.fit(resolve(settings | {"budget": "10m"}), data, CPU, choose_size=True)


def test_a_step_is_timed_once_per_side_of_the_views(tiny_photos: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    grow = {"grow_from": 0.5, "grow_until": 0.5, "grow": "at_once", "warmup_epochs": 0}
    t, sides, real = trainer(tiny_photos[:128], schedule=grow), [], Trainer.step

    def watched(self: Trainer, views: Views) -> tuple:
        sides.append(views.pixels["large"].shape[-1])
        return real(self, views)

    monkeypatch.setattr(Trainer, "step", watched)
    costs = timed_steps(t)
    assert sides == [16] * 4 + [32] * 4  # one to warm up, three that count
    assert [len({*costs[:10]}), len({*costs[10:]}), len({*costs})] == [1, 1, 2]


def test_costs_of_a_part_of_the_run() -> None:
    costs = StepCosts((1.0,) * 10 + (3.0,) * 10, steps_per_epoch=5)
    assert [costs.mean(), costs.mean(0.5), costs.mean(0.0, 0.5)] == [2.0, 3.0, 1.0]
    assert [costs.steps(60.0), costs.steps(60.0, since=0.5)] == [30, 20]


@pytest.mark.long
def test_a_run_that_was_stopped_goes_on_with_what_is_left(tmp_path: Path) -> None:
    out = tmp_path / "r"
    command = [sys.executable, "-m", "effssl", "pretrain", "--data", "digits", "--budget", "2m", "--out", str(out)]
    command += ["--checkpoint-every", "20", "--resume", "auto"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (out / "checkpoint.pt").exists() and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 75, said
    assert re.search(r"2m chose the recipe budget-\S+, whose time is nearest on this machine; about [\d,]+ steps", said)
    assert not re.search(r"epoch \d+/", said)  # how many there will be is open
    state = load_checkpoint(out / "checkpoint.pt")
    assert state is not None
    before = state["total_steps"]
    assert state["position"]["elapsed"] > 0
    state["position"]["elapsed"] = 119.0  # as if nearly all of the time were gone
    save_checkpoint(out / "checkpoint.pt", state)
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    after = load_checkpoint(out / "checkpoint.pt")
    assert after["position"]["elapsed"] > 119
    assert after["total_steps"] < before / 2
    run = effssl.Run(out)
    assert run.metrics()[-1]["lr"] < 0.05 * run.config.lr  # the schedule was run to its end
    assert run.finished
    for flags, answer in (([], "is finished"), (["--lr", "0.123"], "was started with other settings (lr")):
        again = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60)
        assert answer in again.stderr
        assert again.returncode == (2 if flags else 0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [({"budget": "1s"}, "use a longer budget"), ({"budget": "10m", "epochs": 3}, "give epochs= or budget=")],
)
def test_a_budget_that_cannot_be_kept(flags: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=message):
        effssl.pretrain("digits", "byol", out=tmp_path / "r", batch_size=1024, **flags)
    assert not (tmp_path / "r").exists()
