"""A request becomes a plan: values come from where they should, and what cannot work is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from effssl.objectives.options import TERMS, TermEntry, TermOptions
from effssl.recipes import Plan, resolve
from effssl.runtime.errors import RequestError
from effssl.schema import flatten, to_dict


@pytest.mark.parametrize(
    ("data", "objective", "accelerator", "name"),
    [
        ("cifar10", "byol+rotation", True, "cifar10-byol"),
        ("cifar100", "rotation", True, "cifar100-rotation"),
        ("photos", "simsiam + 0.1*rotation", True, "images-simsiam-efficient"),
        ("photos", "simsiam", True, "images-simsiam"),
        ("photos", "simsiam+jigsaw", True, "images-simsiam"),
        ("cifar10", "simclr", False, "cpu-simclr"),
        ("cifar10", "simclr+rotation", False, "cpu-simclr-efficient"),
        ("photos", "rotation+byol", False, "cpu-byol-efficient"),
        ("photos", "byol+jigsaw+rotation", False, "cpu-byol-efficient"),
        ("photos", "rotation", False, "cpu-rotation"),
        ("photos", "rotation+jigsaw", False, "cpu-rotation"),
        ("photos", "byol+rotation_supcon", False, "cpu-byol"),
        ("digits", "byol", True, "cifar10-byol"),
        ("photos", "swav+rotation", True, "imagenet100-swav"),
        ("photos", "supcon", True, "images-simclr"),
        ("photos", "jigsaw", False, "cpu-jigsaw"),
    ],
)
def test_auto_chooses(data: str, objective: str, accelerator: bool, name: str) -> None:
    plan = resolve({"data": data, "objective": objective}, accelerator=accelerator)
    assert plan.config.recipe == name
    assert plan.notes[0].split(";")[0] == f"recipe {name}"


@pytest.mark.parametrize(
    ("data", "objective", "encoder", "name"),
    [
        ("cifar10", "simclr+rotation", "timm:vit_tiny_patch4", "cifar10-simclr-vit"),
        ("cifar100", "rotation+byol", "timm:deit_tiny_patch16_224", "cifar10-byol-vit"),
        ("photos", "vicreg", "vit_b_16", "images-vicreg-vit"),
        ("photos", "supcon", "timm:vit_small_patch16_224", "images-simclr-vit"),
        ("photos", "simclr+rotation", "timm:resnet18", "cpu-simclr-efficient"),
        ("cifar10", "dino", "timm:vit_tiny_patch4", "cpu-dino"),
    ],
)
def test_a_transformer_takes_a_recipe_for_transformers(data: str, objective: str, encoder: str, name: str) -> None:
    config = resolve({"data": data, "objective": objective, "encoder": encoder}).config
    assert (config.recipe, config.encoder) == (name, encoder)
    assert config.optimizer.name == ("adamw" if name.endswith("-vit") else "sgd")


def test_a_transformer_with_an_optimizer_for_convolutions_is_noted() -> None:
    flags = {"data": "cifar10", "objective": "dino", "encoder": "timm:vit_tiny_patch4"}
    notes = [note for note in resolve(flags).notes if "adamw" in note]
    assert notes == [
        "timm:vit_tiny_patch4 is trained by sgd with lr 0.2, as recipe cpu-dino says; "
        "what fits a transformer is --optimizer.name adamw --lr 0.0005"
    ]
    for other in ({"optimizer": {"name": "sgd"}}, {"objective": "simclr"}, {"encoder": "resnet18"}):
        assert not any("fits a transformer" in note for note in resolve(flags | other).notes)


@pytest.mark.parametrize(
    ("objective", "name"),
    [
        ("distill+simclr", "cpu-simclr"),
        ("rotation+distill+byol", "cpu-byol-efficient"),
        ("supervised+simclr", "cpu-simclr"),
        ("rotation+distill", "cpu-distill"),
    ],
)
def test_a_term_that_compares_views_decides_whatever_its_place(objective: str, name: str) -> None:
    turned = "+".join(reversed(objective.split("+")))
    assert [resolve({"data": "cifar10", "objective": one}).config.recipe for one in (objective, turned)] == [name] * 2


def test_an_efficient_recipe_that_was_not_asked_for_names_the_published_form() -> None:
    assert resolve({"data": "x"}).notes[0].endswith("; --recipe cpu-simclr has the published form of rotation")
    assert resolve({"data": "x", "recipe": "cpu-byol-efficient"}).notes[0] == "recipe cpu-byol-efficient"


def test_a_registered_base_method_takes_the_published_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody measured it with anything else."""

    @dataclass(frozen=True)
    class Options(TermOptions):
        margin: float = 0.5

    monkeypatch.setitem(TERMS, "mine", TermEntry(Options, object))
    plan = resolve({"data": "x", "objective": "mine+rotation", "mine": {"margin": 0.7}})
    assert (plan.config.recipe, plan.weights["mine"]) == ("cpu-byol", 1.0)
    assert to_dict(plan.config)["mine"]["margin"] == 0.7


@pytest.mark.parametrize(
    "flags", [{"objective": "byol+0*rotation"}, {"objective": "byol+rotation", "rotation": {"weight": 0.0}}]
)
def test_a_term_of_weight_zero_is_left_out_before_the_recipe_is_chosen(flags: dict[str, Any]) -> None:
    plan, plain = resolve({"data": "x"} | flags), resolve({"data": "x", "objective": "byol"})
    assert plan.weights == plain.weights == {"byol": 1.0}
    assert "rotation has weight 0 and is left out" in plan.notes
    ours, theirs = flatten(to_dict(plan.config)), flatten(to_dict(plain.config))
    assert {key for key in ours if ours[key] != theirs[key]} <= {"objective", "rotation.weight"}
    assert ours["rotation.weight"] == 0


def test_a_files_or_a_recipes_weight_of_zero_counts_too(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("rotation: {weight: 0}\n")
    plan = resolve({"data": "x", "objective": "byol+rotation"}, tmp_path / "c.yaml")
    assert (plan.config.recipe, list(plan.weights)) == ("cpu-byol", ["byol"])
    (tmp_path / "recipe.yaml").write_text("byol: {weight: 0}\n")
    plan = resolve({"data": "x", "objective": "byol+rotation", "recipe": str(tmp_path / "recipe.yaml")})
    assert list(plan.weights) == ["rotation"]
    assert "byol has weight 0 and is left out" in plan.notes


def test_weights_are_written_or_come_from_the_recipe_in_the_order_of_the_objective() -> None:
    plan = resolve({"data": "x", "objective": "0.3*rotation+simsiam+jigsaw", "jigsaw": {"weight": 0.7}})
    assert list(plan.weights.items()) == [("rotation", 0.3), ("simsiam", 1.0), ("jigsaw", 0.7)]
    assert plan.config.rotation.weight == 0.3  # type: ignore[attr-defined]
    assert resolve({"data": "x", "objective": "byol+rotation"}).weights == {"byol": 2.0, "rotation": 0.4}


def test_every_weight_zero_is_refused() -> None:
    with pytest.raises(RequestError, match="every term has weight 0"):
        resolve({"data": "x", "objective": "0*byol"})


def test_precedence_defaults_recipe_file_flags(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("epochs: 7\nseed: 3\nviews:\n  rotated: {size: 8, count: 1}\nlr: 1e-2\n")
    given = {"data": "digits", "objective": "byol+rotation", "epochs": 9, "views": {"rotated": {"size": 12}}}
    config = to_dict(resolve(given, file).config)
    assert (config["epochs"], config["seed"], config["lr"]) == (9, 3, 0.01)
    assert (config["views"]["rotated"]["size"], config["views"]["rotated"]["count"]) == (12, 1)
    assert config["views"]["rotated"]["online"]  # the recipe's
    assert config["byol"]["predictor_hidden"] == 512  # the recipe's
    assert config["optimizer"]["clip_norm"] == 0  # the default


def test_a_file_may_name_objective_and_recipe(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("objective: simclr\n")
    assert resolve({"data": "x"}, tmp_path / "c.yaml").config.recipe == "cpu-simclr"
    (tmp_path / "c.yaml").write_text("objective: simclr\nrecipe: cifar10-simclr\n")
    assert resolve({"data": "x"}, tmp_path / "c.yaml").config.epochs == 200
    assert resolve({"data": "x", "recipe": "cpu-simclr"}, tmp_path / "c.yaml").config.epochs == 20


def test_a_recipe_of_your_own_may_name_the_objective(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("objective: simclr+rotation\nrotation: {weight: 0.3}\nepochs: 5\nscore: none\n")
    flags = {"data": "x", "recipe": str(tmp_path / "mine.yaml"), "schedule": {"warmup_epochs": 1.0}}
    plan = resolve(flags)
    assert (plan.weights, plan.config.epochs) == ({"simclr": 1.0, "rotation": 0.3}, 5)
    assert list(resolve(flags | {"objective": "simclr"}).weights) == ["simclr"]


def test_a_runs_config_is_complete(tmp_path: Path) -> None:
    """Nothing of a recipe is added to it, and it resolves to itself."""
    first = resolve({"data": "x", "objective": "swav+rotation", "epochs": 8, "schedule": {"warmup_epochs": 4.0}})
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(to_dict(first.config) | {"versions": {"effssl": "0"}}))
    again = resolve({}, file)
    assert (again.config, again.weights) == (first.config, first.weights)
    changed = resolve({"seed": 1}, file, accelerator=True)
    assert changed.config == type(first.config)(**{**vars(first.config), "seed": 1})
    with pytest.raises(RequestError, match='recipe="cpu-byol" would change none of them'):
        resolve({"recipe": "cpu-byol"}, file)
    file.write_text("objective: byol+rotation\nrecipe: cpu-byol-efficient\nversions: {effssl: '0'}\n")
    assert resolve({"data": "x"}, file).config.views.large.count == 2  # the default, not the recipe's


def learning_rate(**flags: Any) -> float:
    return resolve({"data": "x", "objective": "byol", "recipe": "cifar10-byol"} | flags).config.lr


def test_the_learning_rate_follows_the_batch_size_unless_given(tmp_path: Path) -> None:
    assert learning_rate() == 0.8
    assert learning_rate(batch_size=256) == 0.4
    assert learning_rate(batch_size=256, lr=0.8) == 0.8
    notes = resolve({"data": "x", "recipe": "cifar10-byol", "batch_size": 256}).notes
    assert "lr 0.8 holds for batch 512; scaled to 0.4 for batch 256" in notes
    (tmp_path / "c.yaml").write_text("lr: 0.3\nbatch_size: 64\n")
    assert resolve({"data": "x", "batch_size": 32}, tmp_path / "c.yaml").config.lr == 0.3


def warmup(plan: Plan) -> float:
    return plan.config.schedule.warmup_epochs


def test_warm_up_is_at_most_a_tenth_of_a_shortened_run(tmp_path: Path) -> None:
    flags = {"data": "x", "objective": "byol", "recipe": "cifar10-byol"}
    assert warmup(resolve(flags)) == 10
    assert warmup(resolve(flags | {"epochs": 20})) == 2
    assert warmup(resolve(flags | {"epochs": 400})) == 10
    assert warmup(resolve(flags | {"epochs": 20, "schedule": {"warmup_epochs": 5.0}})) == 5
    file = tmp_path / "c.yaml"
    file.write_text("epochs: 100\nschedule: {warmup_epochs: 15}\n")
    assert warmup(resolve(flags, file)) == 15  # as it stands there, beside its own epochs
    assert warmup(resolve(flags | {"epochs": 2}, file)) == pytest.approx(0.2)


def test_notes_warn_of_labels_and_micro_batches() -> None:
    def notes(**flags: Any) -> str:
        return "\n".join(resolve({"data": "x"} | flags).notes)

    assert "labels of all training images" in notes(objective="supcon")
    assert "labels of all training images" in notes(objective="simclr", simclr={"known_labels": 0.5})
    assert "labels of all" not in notes(objective="simclr")
    assert "labels of all" not in notes(objective="supcon", subset=100)
    assert "2 micro-batches" in notes(objective="simclr", accumulate=2)


def test_a_budget_on_an_accelerator_says_that_it_chooses_no_recipe() -> None:
    plans = [resolve({"data": "cifar10", "budget": "5m"}, accelerator=accelerator) for accelerator in (True, False)]
    says = ["recipes by budget are for CPUs" in " ".join(plan.notes) for plan in plans]
    assert says == [True, False]
    assert [plan.config.recipe for plan in plans] == ["cifar10-simclr", "budget-simclr-5m"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"augment": {"blur_kernel": 4}}, "augment.blur_kernel is 4; it must be odd"),
        ({"optimizer": {"nesterov": True, "momentum": 0.0}}, "nesterov needs sgd with momentum"),
        ({"optimizer": {"nesterov": True, "name": "lars"}}, "nesterov needs sgd with momentum"),
        ({"train_stem": True}, "train_stem needs a stem that is computed from the images"),
        ({"epochs": 3, "schedule": {"warmup_epochs": 3.0}}, "warm-up leave nothing of a run of 3"),
        ({"schedule": {"milestones": [0.5, 1.0]}}, "below 1"),
        ({"schedule": {"milestones": [0.0]}}, "above 0"),
        ({"views": {"large": {"every_angle": True}}}, "views.large.every_angle needs views that are rotated"),
        ({"views": {"small": {"upright": 0.5}}}, "views.small.upright needs views that are rotated"),
        ({"views": {"large": {"angle_embedding": True}}}, "views.large.angle_embedding needs views that are rotated"),
        ({"views": {"rotated": {"online": False}}}, "give views.rotated.online"),
        ({"views": {"rotated": {"angles": [0.0]}}}, "at least two different angles"),
        ({"views": {"rotated": {"angles": [0.0, 90.0, 0.0]}}}, "at least two different angles"),
        ({"views": {"rotated": {"every_angle": True, "upright": 0.5}}}, "not views.rotated.every_angle"),
        ({"views": {"small": {"scale": [0.5, 0.2]}}}, r"views.small.scale is \[0.5, 0.2\]"),
        ({"views": {"small": {"scale": [0.0, 0.2]}}}, "or 0 0"),
    ],
)
def test_values_that_do_not_go_together_are_refused(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        resolve({"data": "x"} | flags)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"recipe": "cpu-boyl"}, "did you mean cpu-byol"),
        ({"objective": "byol+rotatoin"}, "did you mean rotation"),
        ({"rotation": 3}, "rotation holds several values"),
        ({"schedule": 3}, "schedule holds several values"),
        ({"form": "paper"}, "unknown key 'form'"),
        ({"rotation": {"weight": -1.0}}, "rotation.weight is -1.0; it must be at least 0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"encoder": "pixels"}, "pixels has nothing to train; effssl eval knn pixels"),
    ],
)
def test_wrong_requests_are_refused(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        resolve({"data": "x"} | flags)


def test_a_learning_rate_for_another_optimizer_is_noted() -> None:
    flags = {"data": "x", "objective": "simclr", "recipe": "cpu-simclr", "optimizer": {"name": "muon"}}
    says = "is one for sgd; with muon give --lr too"
    assert any(says in note for note in resolve(flags).notes)
    assert not any(says in note for note in resolve(flags | {"lr": 0.02}).notes)
