"""The recipes that come with the package: each is a flat document, and what it says is what runs."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from effssl import recipes
from effssl.config import config_type
from effssl.objectives.options import TERMS
from effssl.recipes import resolve
from effssl.schema import flatten, read_yaml, to_dict
from effssl.training.build import build_objective


def objective_of(name: str) -> str:
    """The objective that a recipe's header names."""
    text = (recipes.FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    return text.split("--objective ")[1].split()[0]


@pytest.mark.parametrize("name", recipes.names())
def test_what_a_recipe_says_is_what_runs(name: str) -> None:
    config = resolve({"data": "x", "objective": objective_of(name), "recipe": name}).config
    said, runs = flatten(recipes.read(name)), flatten(to_dict(config))
    assert {key: runs[key] for key in said} == said
    assert config.recipe == name


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_names_its_command_its_cost_and_its_score(name: str) -> None:
    path = recipes.FOLDER / f"{name}.yaml"
    comment = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    commands = [line for line in comment if line.startswith("#   effssl pretrain ")]
    assert len(commands) == 1
    assert commands[0].endswith(f" --recipe {name}")
    assert {"cost", "score"} <= read_yaml(path).keys()
    assert "Counted" in recipes.about(name)
    published = name.removesuffix("-efficient")
    if published != name:
        assert any(f"--recipe {published} " in line for line in comment)


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipes_base_method_stands_in_its_name_and_in_its_settings(name: str) -> None:
    term = name.split("-")[1]
    assert term in TERMS
    assert objective_of(name).split("+")[0] == term
    assert term in recipes.read(name)


def test_the_papers_numbers() -> None:
    """SPEC: lr, momentum and λ of the published runs."""
    for name, lr, weight in [
        ("cifar10-simclr", 0.5, 2.0), ("cifar10-byol", 0.8, 0.4), ("cifar10-simsiam", 0.14, 0.2),
        ("cifar100-simclr", 0.5, 2.0), ("cifar100-byol", 0.8, 0.4), ("cifar100-simsiam", 0.10, 0.4),
        ("cifar10-swav", 0.6, 1.0), ("cifar100-swav", 0.6, 1.0),
    ]:  # fmt: skip
        term = name.split("-")[1]
        plan = resolve({"data": "cifar10", "objective": f"{term}+rotation", "recipe": name})
        assert (plan.config.lr, plan.weights["rotation"]) == (lr, weight)
        assert (plan.config.epochs, plan.config.batch_size, plan.config.encoder) == (200, 512, "resnet18")
    assert resolve({"data": "x", "objective": "byol", "recipe": "cifar100-byol"}).config.byol.momentum == 0.85


@pytest.mark.parametrize(
    "name", [name for name in recipes.names() if name.split("-")[-1] in ("byol", "simclr", "moco")]
)
def test_the_published_form_rotates_copies_of_the_large_views(name: str) -> None:
    """SPEC §1.3: the views of the base method once more, at full size, each rotated by an angle of its own."""
    views = resolve({"data": "x", "objective": objective_of(name), "recipe": name}).config.views
    rotated = views.rotated
    assert (rotated.copy_of, rotated.size, rotated.count) == ("large", 1.0, views.large.count)
    assert (rotated.online, rotated.target, rotated.update_stats) == (False, False, True)


@pytest.mark.parametrize("name", [name for name in recipes.names() if name.endswith("-efficient")])
def test_an_efficient_recipe_is_the_plain_one_but_for_rotation_and_its_schedule(name: str) -> None:
    """Encoder, heads, optimizer and augmentation are the same, so the two can be compared."""
    efficient, plain = (
        resolve({"data": "x", "objective": objective_of(name), "recipe": recipe}).config
        for recipe in (name, name.removesuffix("-efficient"))
    )
    for item in ("encoder", "epochs", "image_size", "projector", "optimizer", "augment"):
        assert getattr(efficient, item) == getattr(plain, item), item
    assert efficient.views.rotated.size == 0.5
    assert not efficient.views.rotated.update_stats


@pytest.mark.parametrize("term", ["byol", "simclr", "supcon", "supervised", "swav", "moco", "rotation", "jigsaw"])
def test_photographs_get_no_settings_for_small_images(term: str) -> None:
    name = recipes.choose("path/to/photos", [term], accelerator=True)
    assert recipes.read(name)["image_size"] == 224
    assert name.split("-")[1] == (term if term != "supcon" else "simclr")


def test_essl_has_a_deeper_head_with_layer_norm_on_h() -> None:
    plan = resolve({"data": "cifar10", "objective": "simclr+rotation", "recipe": "cifar10-simclr-essl"})
    config, head = plan.config, build_objective(plan, torch.device("cpu")).terms["rotation"].r
    assert [type(layer).__name__ for layer in head] == ["Linear", "LayerNorm", "ReLU"] * 2 + ["Linear"]
    assert (head[0].in_features, head[-1].out_features) == (512, 4)
    assert config.views.rotated.side(32) == 16
    assert config.views.rotated.views == 4


def test_no_recipe_repeats_the_default_of_a_view_group_that_it_does_not_use() -> None:
    """A group stands in a recipe only where it differs from the defaults."""
    defaults = {group: dataclasses.asdict(options) for group, options in config_type()().views.named().items()}
    for name in recipes.names():
        for group, options in recipes.read(name).get("views", {}).items():
            assert any(defaults[group][key] != value for key, value in options.items()), f"{name}: {group}"
