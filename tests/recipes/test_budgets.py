"""The dial: a time budget chooses a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from effssl import recipes
from effssl.recipes import resolve
from effssl.recipes.budgets import RUNG, recipe_for_budget


@pytest.mark.parametrize(
    ("data", "minutes", "speed", "family", "rung"),
    [
        ("cifar10", 1, 1.0, "budget", 1),
        ("cifar10", 2, 1.0, "budget", 1),  # twice 1 minute, 2.5 times less than 5
        ("cifar10", 3, 1.0, "budget", 5),
        ("cifar10", 600, 1.0, "budget", 60),
        ("cifar10", 20, 0.05, "budget", 1),  # a machine that is twenty times slower
        ("photos/", 4, 1.0, "photos", 5),
    ],
)
def test_the_nearest_rung_by_ratio(data: str, minutes: float, speed: float, family: str, rung: int) -> None:
    found = RUNG.fullmatch(recipe_for_budget(data, 60 * minutes, speed))
    assert found
    assert (found["family"], int(found["minutes"])) == (family, rung)


def test_a_budget_alone_chooses_recipe_objective_and_encoder() -> None:
    plan = resolve({"data": "cifar10", "budget": "5m"})
    assert plan.config.recipe == recipe_for_budget("cifar10", 300)
    said = recipes.read(plan.config.recipe)
    assert (plan.config.objective, plan.config.encoder) == (said["objective"], said["encoder"])
    assert plan.notes[0].startswith("to expect: CIFAR-10 ")
    assert resolve({"data": "cifar10", "budget": "1h"}).notes == []  # not measured: the budget says what it chose


@pytest.mark.parametrize("flags", [{"objective": "byol"}, {"encoder": "small"}, {"recipe": "cpu-byol"}])
def test_a_request_that_says_more_does_not_use_it(flags: dict, tmp_path: Path) -> None:
    plan = resolve({"data": "cifar10", "budget": "5m"} | flags)
    assert not RUNG.fullmatch(plan.config.recipe)
    file = tmp_path / "my.yaml"
    key, value = next(iter(flags.items()))
    file.write_text(f"{key}: {value}\n")
    assert not RUNG.fullmatch(resolve({"data": "cifar10", "budget": "5m"}, file).config.recipe)


def test_recipe_auto_says_nothing_more() -> None:
    flags = {"data": "cifar10", "budget": "5m"}
    assert resolve(flags | {"recipe": "auto"}).config.recipe == resolve(flags).config.recipe


def test_patches_are_whitened_with_what_was_given() -> None:
    flags = {"data": "cifar10", "encoder": "patches-50"}
    assert resolve(flags).config.readout.dim == 1024
    readout = resolve(flags | {"readout": {"flip": False}}).config.readout
    assert (readout.dim, readout.flip, readout.maps) == (1024, False, False)
    assert resolve(flags | {"whiten": "off"}).config.whiten == "off"


def test_with_an_accelerator_the_papers_recipe_is_kept() -> None:
    assert not RUNG.fullmatch(resolve({"data": "cifar10", "budget": "5m"}, accelerator=True).config.recipe)
