"""A run that fits into a given time, and views that grow on the way."""

from __future__ import annotations

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
from effssl.recipes import resolve
from effssl.runtime.errors import RequestError
from effssl.training.budget import Budget, parse_budget, timed_steps
from effssl.training.build import side_of_views
from effssl.training.checkpoint import load_checkpoint, save_checkpoint
from effssl.training.loop import Trainer

CPU = torch.device("cpu")


def trainer(pixels: Tensor, **flags) -> Trainer:
    base = {"data": "x", "objective": "byol+rotation", "image_size": 32, "batch_size": 32, "epochs": 10}
    return Trainer(resolve(base | flags), Data("photos", ArrayImages(pixels)), CPU)


@pytest.mark.parametrize("text", ["", "ten minutes", "10", "m", "-5m", "1h 30", "0s"])
def test_what_is_not_a_time(text: str) -> None:
    with pytest.raises(RequestError, match="budget"):
        parse_budget(text)


def test_views_grow(tiny_photos: Tensor) -> None:
    t = trainer(tiny_photos[:128], form="paper", schedule={"grow_from": 0.5, "grow_until": 0.8, "warmup_epochs": 0})
    steps = t.loader.steps
    sides = [next(t.loader.epoch(epoch)).large[0].shape[-1] for epoch in range(10)]
    assert sides[0] == 16
    assert sides == sorted(sides)
    assert sides[8:] == [32, 32]
    assert 24 in sides
    assert [side_of_views(t.config, step / (10 * steps)) for step in range(0, 10 * steps, steps)] == sides


def test_time_is_kept_for_the_report() -> None:
    assert [Budget(seconds, 0.0, report=True).seconds for seconds in (40.0, 600.0)] == [38.0, 595.0]


def test_views_grow_at_once(tiny_photos: Tensor) -> None:
    t = trainer(tiny_photos[:128], schedule={"grow_from": 0.5, "grow_until": 0.8, "grow": "at_once"})
    assert [side_of_views(t.config, done) for done in (0.0, 0.5, 0.79, 0.8, 1.0)] == [16, 16, 16, 32, 32]


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
    assert [next(t.loader.epoch(epoch)).large[0].shape[-1] for epoch in (0, 1)] == [32, 48]


def test_small_views_cost_less_and_are_counted(tiny_photos: Tensor) -> None:
    t = trainer(tiny_photos[:128], schedule={"grow_from": 0.5, "grow_until": 0.8, "warmup_epochs": 0})
    for epoch in (0, 9):
        t.counted_step(next(t.loader.epoch(epoch)))
    small, full = t.position.costs.values()
    assert small < 0.6 * full


def test_the_number_of_steps_follows_the_pace(tiny_photos: Tensor) -> None:
    t = trainer(tiny_photos[:128])
    budget = Budget(10_000.0, time.monotonic())
    budget.costs = [10.0] * 20
    budget.begin(t, 1)
    assert t.total_steps == pytest.approx(1000, rel=0.02)
    t.position.epoch = 25  # 100 steps
    budget.plan_again(t, 2_000.0)  # that took twice as long as they should have
    assert t.total_steps == pytest.approx(100 + 500, rel=0.02)


@pytest.mark.parametrize(("free", "size"), [(True, 0.5), (False, 0.0)])
def test_a_budget_rotates_small_views_unless_told_otherwise(tiny_photos: Tensor, free: bool, size: float) -> None:
    settings = {"data": "x", "objective": "byol+rotation", "image_size": 32, "batch_size": 32, "lr": 0.1}
    plan = resolve(settings | {"rotation": {"size": 0.0, "update_stats": True}, "budget": "10m"})
    data = Data("photos", ArrayImages(tiny_photos[:128]))
    budget = Budget(600.0, time.monotonic())
    chosen = budget.choose(plan, data, CPU, {"size": False, "task": free})
    assert (chosen.config.rotation.size, chosen.config.rotation.update_stats) == (size, not free)
    assert any("half the side" in note for note in chosen.notes) == free
    again = budget.choose(plan, data, CPU, {"size": False, "task": free}, chosen.config)
    assert again.config.rotation == chosen.config.rotation


def test_short_epochs_are_counted_anew_too(tiny_photos: Tensor) -> None:
    t = trainer(tiny_photos[:128])  # 4 steps an epoch
    budget = Budget(10_000.0, time.monotonic())
    t.position.total = 1000
    due = []
    for step in range(1, 101):
        t.position.epoch, t.position.step = divmod(step, 4)
        due.append(budget.due(t))
    assert sum(due) == 5  # every 20 steps, whatever an epoch holds
    t.position.total = 100
    assert budget.due(t)  # a short run is looked at more often


def test_the_largest_views_that_leave_enough_epochs(photos: Tensor, tmp_path: Path) -> None:
    for i, image in enumerate(photos[:8]):
        to_pil_image(image).save(tmp_path / f"{i}.png")
    settings = {"data": "x", "objective": "byol+rotation", "batch_size": 4, "lr": 0.1, "workers": 0, "image_size": 32}
    data, free = effssl.open_data(str(tmp_path)), {"size": True, "task": True}
    long = Budget(parse_budget("10000h"), time.monotonic())
    assert long.choose(resolve(settings | {"budget": "10000h"}), data, CPU, free).config.image_size == 128
    over = Budget(600.0, time.monotonic() - 600)
    with pytest.raises(RequestError, match="went by before training"):
        over.choose(resolve(settings | {"budget": "10m"}), data, CPU, free)


def test_cheap_steps_are_timed_as_cheap(tiny_photos: Tensor) -> None:
    grow = {"grow_from": 0.125, "grow_until": 0.5, "warmup_epochs": 0}  # from 16 to 128 pixels: 64 times the work
    costs = timed_steps(trainer(tiny_photos[:128], image_size=128, schedule=grow))
    assert len(costs) == 20
    assert costs[0] < costs[-1]


def test_a_run_that_was_stopped_goes_on_with_what_is_left(tmp_path: Path) -> None:
    out = tmp_path / "r"
    command = [sys.executable, "-m", "effssl", "pretrain", "--data", "digits", "--budget", "1h", "--out", str(out)]
    command += ["--checkpoint-every", "20", "--resume", "auto"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (out / "checkpoint.pt").exists() and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 75, said
    assert "1h hold about" in said
    state = load_checkpoint(out / "checkpoint.pt")
    assert state is not None
    before = dict(state["position"])
    assert before["elapsed"] > 0
    state["position"]["elapsed"] = 3599.0  # as if nearly all of the hour were gone
    save_checkpoint(out / "checkpoint.pt", state)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    after = load_checkpoint(out / "checkpoint.pt")["position"]
    assert after["elapsed"] > 3599
    assert after["total"] < before["total"] / 2
    run = effssl.Run(out)
    assert run.metrics()[-1]["lr"] < 0.05 * run.config.lr  # the schedule was run to its end
    assert run.finished
    for flags, answer in (([], "is finished"), (["--lr", "0.123"], "was started with other settings (lr")):
        again = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60)
        assert answer in again.stderr
        assert again.returncode == (2 if flags else 0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [({"budget": "1s"}, "give it more time"), ({"budget": "10m", "epochs": 3}, "give --epochs or --budget")],
)
def test_a_budget_that_cannot_be_kept(flags: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=message):
        effssl.pretrain("digits", "byol", out=tmp_path / "r", batch_size=1024, **flags)
    assert not (tmp_path / "r").exists()
