"""Recipes load, build and take a step; and values come from where they should."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from effssl import recipes
from effssl.config import Config, build, differences, read_yaml, to_dict
from effssl.data.views import Views
from effssl.errors import RequestError
from effssl.recipes import resolve
from effssl.training.loop import make_objective
from effssl.training.optimizers import make_optimizer


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_loads_builds_and_takes_a_step(name: str, photos: Tensor) -> None:
    term = name.split("-")[-1]
    objective = term if term == "rotation" else f"{term}+rotation"
    plan = resolve({"data": "x", "objective": objective, "recipe": name, "batch_size": 4, "image_size": 32})
    made = make_objective(plan, torch.device("cpu"))
    optimizer = make_optimizer(plan.config.optimizer, made, plan.config.lr)
    x = photos[:4, :, :32, :32].float() / 255
    loss, _ = made(Views([x, x.flip(-1)], torch.arange(4), total=4))
    loss.backward()
    optimizer.step()
    assert torch.isfinite(loss)
    text = (recipes.FOLDER / f"{name}.yaml").read_text()
    assert f"--recipe {name}" in text  # the command
    assert recipes.about(name).count(";") >= 1  # cost and score
    assert "to be counted" not in text


def test_the_papers_numbers() -> None:
    """SPEC: lr, momentum and λ of the published runs."""
    for name, lr, weight in [
        ("cifar10-simclr", 0.5, 2.0), ("cifar10-byol", 0.8, 0.4), ("cifar10-simsiam", 0.14, 0.2),
        ("cifar100-simclr", 0.5, 2.0), ("cifar100-byol", 0.8, 0.4), ("cifar100-simsiam", 0.10, 0.4),
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
        ("photos", "rotation+byol", False, "cpu-rotation"),
    ],
)
def test_auto_chooses(data: str, objective: str, accelerator: bool, name: str) -> None:
    plan = resolve({"data": data, "objective": objective}, accelerator=accelerator)
    assert plan.config.recipe == name
    assert f"recipe {name}" in plan.notes


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
