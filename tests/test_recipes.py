"""Recipes load, build and take a step; and values come from where they should."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

from effssl import recipes
from effssl.config import Config, build, differences, read_yaml, to_dict
from effssl.data import ArrayImages, Data
from effssl.objectives.options import PRETEXT
from effssl.recipes import resolve
from effssl.runtime.errors import RequestError
from effssl.training.loop import Trainer


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_loads_builds_and_takes_a_step(name: str, photos: Tensor) -> None:
    """As it stands, but for the size of images, batch and queue."""
    term = name.split("-")[1]
    objective = term if term in PRETEXT else f"{term}+rotation"
    batch = 16 if term == "moco" else 4  # its keys run in eight groups
    size = 64 if term == "jigsaw" else 32
    flags = {"data": "x", "objective": objective, "recipe": name, "batch_size": batch, "image_size": size}
    small = {"small_size": 16} if read_yaml(recipes.FOLDER / f"{name}.yaml")["augment"].get("small") else {}
    plan = resolve(flags | {"moco": {"queue": 32}, "augment": small})
    data = Data("photos", ArrayImages(photos[:16], torch.arange(16) % 4, list("abcd")))
    trainer = Trainer(plan, data, torch.device("cpu"))
    loss, _ = trainer.step(next(trainer.loader.epoch(0)))
    assert torch.isfinite(loss)
    text = (recipes.FOLDER / f"{name}.yaml").read_text()
    assert f"--recipe {name}" in text  # the command
    assert recipes.about(name).count(";") >= 1  # cost and score
    assert "to be counted" not in text


def test_the_papers_numbers() -> None:
    """SPEC: lr, momentum and λ of the published runs."""
    for name, lr, weight in [
        ("cifar10-simclr", 0.5, 0.5), ("cifar10-byol", 0.8, 0.4), ("cifar10-simsiam", 0.14, 0.2),
        ("cifar100-simclr", 0.5, 0.5), ("cifar100-byol", 0.8, 0.4), ("cifar100-simsiam", 0.10, 0.4),
    ]:  # fmt: skip
        term = name.split("-")[1]
        plan = resolve({"data": "cifar10", "objective": f"{term}+rotation", "recipe": name})
        assert (plan.config.lr, plan.weights["rotation"]) == (lr, weight)
        assert (plan.config.epochs, plan.config.batch_size, plan.config.encoder) == (200, 512, "resnet18")
    assert resolve({"data": "x", "objective": "byol", "recipe": "cifar100-byol"}).config.byol.momentum == 0.85


@pytest.mark.parametrize(
    ("data", "objective", "accelerator", "name"),
    [
        ("cifar10", "byol+rotation", True, "cifar10-byol"),
        ("cifar100", "rotation", True, "cifar100-rotation"),
        ("photos", "simsiam + 0.1*rotation", True, "images-simsiam"),
        ("cifar10", "simclr", False, "cpu-simclr"),
        ("photos", "rotation+byol", False, "cpu-byol"),
        ("digits", "byol", True, "cifar10-byol"),
        ("photos", "swav+rotation", True, "imagenet100-swav"),
        ("photos", "supcon", True, "cifar10-supcon"),
        ("photos", "jigsaw", False, "cpu-jigsaw"),
    ],
)
def test_auto_chooses(data: str, objective: str, accelerator: bool, name: str) -> None:
    plan = resolve({"data": data, "objective": objective}, accelerator=accelerator)
    assert plan.config.recipe == name
    assert f"recipe {name}" in plan.notes


def test_the_efficient_form_is_for_a_base_method_with_rotation() -> None:
    def config(objective: str, **flags):
        return resolve({"data": "cifar10", "recipe": "cpu-byol", "objective": objective} | flags).config

    efficient, published = config("byol+rotation"), config("byol+rotation", form="paper")
    assert (efficient.rotation.size, efficient.rotation.update_stats) == (0.5, False)
    assert (published.rotation.size, published.rotation.update_stats) == (0.0, True)
    assert config("byol+rotation", rotation={"size": 8.0}).rotation.size == 8
    for plain in (config("byol"), config("byol + 0*rotation"), config("byol+rotation", rotation={"weight": 0.0})):
        assert (plain.rotation.size, plain.schedule) == (0.0, config("byol", form="paper").schedule)


@pytest.mark.parametrize(
    ("objective", "flags"),
    [
        ("byol+rotation", {"rotation": {"on": "h"}}),
        ("byol+rotation", {"rotation": {"share": 0.5}}),
        ("byol+rotation", {"rotation": {"views": "given"}, "augment": {"rotate": True}}),
        ("byol+moco+rotation", {}),
        ("simclr+rotation", {"simclr": {"known_labels": 0.5}}),
        ("simclr+rotation", {"simclr": {"decoupled": True}}),
    ],
)
def test_the_efficient_form_gives_way_to_what_was_asked_for(objective: str, flags: dict) -> None:
    config = resolve({"data": "cifar10", "objective": objective} | flags).config
    rotation = config.rotation
    assert config.schedule.grow_from == 1
    assert (rotation.for_base, rotation.scale, rotation.size) == ("nothing", (0, 0), 0.5)
    flags = {**flags, "rotation": {**flags.get("rotation", {}), "for_base": "more"}}
    assert resolve({"data": "cifar10", "objective": objective} | flags).config.rotation.for_base == "more"


def test_the_efficient_form_may_have_a_batch_of_its_own() -> None:
    def batch(objective: str, **flags) -> tuple[int, float]:
        config = resolve({"data": "cifar10", "objective": objective, "recipe": "cpu-simclr", **flags}).config
        return config.batch_size, config.lr

    assert batch("simclr") == batch("simclr+rotation", form="paper") == (128, 0.15)
    assert batch("simclr+rotation") == (64, 0.15)
    assert batch("simclr+rotation", batch_size=32) == (32, 0.075)  # what the recipe says holds for its own batch
    assert batch("simclr+rotation", lr=0.3) == (64, 0.3)


def test_wishes_about_crops_and_growth_hold_in_the_efficient_form() -> None:
    def config(**flags):
        return resolve({"data": "cifar10", "objective": "byol+rotation"} | flags).config

    assert config(augment={"scale": (0.5, 1.0)}).rotation.scale == (0.5, 1.0)
    assert config(augment={"pad": 4}).rotation.scale == (0, 0)
    assert config(schedule={"grow_from": 0.5}).schedule.grow == "steadily"
    assert config(byol={"weight": 0.0}).rotation.for_base == "nothing"


def test_a_runs_config_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    older = {"objective": "byol+rotation", "recipe": "cpu-byol", "rotation": {"size": 0.5}, "versions": {"effssl": "0"}}
    file.write_text(yaml.safe_dump(older))
    config = resolve({"data": "cifar10"}, file).config
    assert (config.rotation.for_base, config.schedule.grow_from) == ("nothing", 1)
    file.write_text(yaml.safe_dump(older | {"form": "efficient"}))
    with pytest.raises(RequestError, match="--form paper would change none"):
        resolve({"data": "cifar10", "form": "paper"}, file)
    with pytest.raises(RequestError, match="has no efficient form"):
        resolve({"data": "cifar10", "form": "efficient", "recipe": "cifar10-byol", "objective": "byol+rotation"})


def test_precedence_defaults_recipe_file_flags(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("epochs: 7\nseed: 3\nrotation:\n  on: h\n  size: 8\nlr: 1e-2\n")
    plan = resolve({"data": "digits", "epochs": 9, "rotation": {"size": 12}}, file)
    config = plan.config
    assert (config.epochs, config.seed, config.lr) == (9, 3, 0.01)
    assert (config.rotation.size, config.rotation.on) == (12, "h")
    assert config.byol.predictor_hidden == 512  # recipe


def test_learning_rate_follows_the_batch_unless_given() -> None:
    base = resolve({"data": "x", "objective": "byol", "recipe": "cifar10-byol"})
    half = resolve({"data": "x", "objective": "byol", "recipe": "cifar10-byol", "batch_size": 256})
    given = resolve({"data": "x", "objective": "byol", "recipe": "cifar10-byol", "batch_size": 256, "lr": 0.8})
    assert base.config.lr == 0.8
    assert half.config.lr == 0.4
    assert any("scaled to 0.4" in note for note in half.notes)
    assert given.config.lr == 0.8


def test_warm_up_is_at_most_a_tenth_of_a_shortened_run() -> None:
    short = resolve({"data": "x", "objective": "byol", "recipe": "cifar10-byol", "epochs": 20})
    assert short.config.schedule.warmup_epochs == 2
    kept = resolve(
        {"data": "x", "objective": "byol", "recipe": "cifar10-byol", "epochs": 20, "schedule": {"warmup_epochs": 5.0}}
    )
    assert kept.config.schedule.warmup_epochs == 5


def test_a_weight_of_zero_leaves_the_term_out_and_says_so() -> None:
    plan = resolve({"data": "x", "objective": "byol+0*rotation"})
    assert plan.weights == {"byol": 1.0}
    assert "rotation has weight 0 and is left out" in plan.notes


def test_config_survives_yaml(tmp_path: Path) -> None:
    import yaml

    config = resolve({"data": "x", "objective": "simclr + 0.3*rotation", "augment": {"blur": [1.0, 0.1]}}).config
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(to_dict(config)))
    again = build(Config, read_yaml(tmp_path / "c.yaml"), "c.yaml")
    assert again == config
    assert differences(config, again) == []
    assert differences(config, resolve({"data": "y", "objective": "simclr + 0.3*rotation"}).config)[0] == "data: x → y"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"epochs": "three"}, "epochs takes a value of type int"),
        ({"epochs": 1.5}, "epochs takes a value of type int"),
        ({"lr": True}, "lr takes a value of type float"),
        ({"rotation": 3}, "rotation holds several values"),
        ({"rotation": {"on": "y"}}, "choose one of z, h"),
        ({"rotation": {"sice": 1}}, "did you mean size"),
        ({"augment": {"scale": [0.1, 0.2, 0.3]}}, "takes 2 values"),
        ({"joint_pass": 1}, "type bool"),
    ],
)
def test_wrong_values_are_named(values: dict, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        build(Config, values, "test")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"checkpoint_every": -1}, "checkpoint_every is -1"),
        ({"augment": {"blur": []}}, "augment.blur"),
        ({"augment": {"flip": 7.0}}, "between 0 and 1"),
        ({"augment": {"std": [0.0, 1.0, 1.0]}}, "augment.std"),
        ({"augment": {"blur_kernel": 4}}, "must be odd"),
        ({"optimizer": {"momentum": -1.0}}, "optimizer.momentum"),
        ({"optimizer": {"nesterov": True, "momentum": 0.0}}, "nesterov"),
        ({"rotation": {"weight": -1.0}}, "rotation.weight"),
        ({"moco": {"queue": 0}}, "moco.queue"),
        ({"epochs": 3, "schedule": {"warmup_epochs": 3.0}}, "warm-up leave nothing"),
    ],
)
def test_values_out_of_range_are_named(flags: dict, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        resolve({"data": "x"} | flags)


def test_a_files_warm_up_is_shortened_like_a_recipes(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text("epochs: 100\nschedule: {warmup_epochs: 10}\n")
    plan = resolve({"data": "x", "objective": "byol", "epochs": 2}, tmp_path / "old.yaml")
    assert plan.config.schedule.warmup_epochs == pytest.approx(0.2)
