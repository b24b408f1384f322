"""The promises of the sum, and every combination of the paper."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from effssl.data import Data
from effssl.objectives.objective import groups_read
from effssl.runtime.errors import RequestError
from effssl.training.build import build_objective
from effssl.training.optimizers import build_optimizer
from tests.objectives.making import (
    CPU,
    ONE_SIDED,
    ROTATED_ONLINE,
    losses_of_epochs,
    make,
    passes_of,
    plan,
    some_views,
    trainer_of,
)

PAPER_FORM = {"views": {}}
OWN_CROPS = {"views": {"rotated": {"copy_of": "", "scale": [0.2, 1.0], "size": 0.5, "update_stats": False}}}
EFFICIENT = {"views": ONE_SIDED | {"rotated": ROTATED_ONLINE | {"size": 0.5, "update_stats": False}}}


def test_weight_zero_is_the_base_method_to_the_bit(tiny_photos: Tensor) -> None:
    def three_steps(objective: str) -> list[Tensor]:
        the_plan = plan(objective)
        built = build_objective(the_plan, CPU)
        optimizer = build_optimizer(the_plan.config.optimizer, built, 0.1)
        for step in range(3):
            optimizer.zero_grad()
            built(some_views(built, tiny_photos, step))[0].backward()
            optimizer.step()
            built.after_update(step / 3)
        return list(built.state_dict().values())

    for a, b in zip(three_steps("byol"), three_steps("byol+0*rotation"), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("base", ["byol", "simclr", "simsiam"])
def test_a_term_changes_neither_weights_nor_losses_nor_gradients_of_the_others(tiny_photos: Tensor, base: str) -> None:
    alone, joint = make(base), make(f"{base}+0.4*rotation")
    for (name, a), b in zip(alone.network.state_dict().items(), joint.network.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    losses = [built.outcomes(some_views(built, tiny_photos))[base].loss for built in (alone, joint)]
    assert torch.equal(*losses)
    grads = [
        torch.autograd.grad(loss, list(built.network.parameters()))
        for loss, built in zip(losses, (alone, joint), strict=True)
    ]
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("flags", [PAPER_FORM, OWN_CROPS], ids=["paper", "own crops"])
def test_a_term_does_not_change_the_views_of_the_others(data: Data, flags: dict) -> None:
    alone = next(trainer_of("byol", data, **flags).loader.epoch(0))
    joint = next(trainer_of("byol+rotation", data, **flags).loader.epoch(0))
    assert list(alone.pixels) == ["large"]
    assert torch.equal(alone.pixels["large"], joint.pixels["large"])


def test_terms_do_not_register_the_network() -> None:
    objective = make("simclr+rotation")
    names = [name for name, _ in objective.named_parameters()]
    assert len(names) == len(set(names))
    assert not any("network" in name for name in names if name.startswith("terms"))


@pytest.mark.parametrize(("joint", "passes"), [(True, 1), (False, 2)])
def test_each_pass_runs_once_whoever_reads_it(tiny_photos: Tensor, joint: bool, passes: int) -> None:
    objective = make("simclr+simsiam", views={"large": {"joint_pass": joint}})
    seen = passes_of(objective)
    objective(some_views(objective, tiny_photos))
    assert len(seen) == passes


def test_autocast_returns_float32_losses_near_the_full_ones(tiny_photos: Tensor) -> None:
    for name in ("simclr", "byol", "simsiam", "rotation"):
        full, half = make(name), make(name, precision="bf16")
        losses = [built.outcomes(some_views(built, tiny_photos))[name].loss for built in (full, half)]
        assert losses[1].dtype == torch.float32
        assert float(losses[1]) == pytest.approx(float(losses[0]), abs=0.05)
        assert float(losses[1]) != float(losses[0])


def test_a_task_reports_its_accuracy_and_chance(tiny_photos: Tensor) -> None:
    objective = make("byol+rotation")
    _, metrics = objective(some_views(objective, tiny_photos))
    assert {"loss/byol", "loss/rotation", "accuracy/rotation", "chance/rotation"} == set(metrics)
    assert float(metrics["chance/rotation"]) == 0.25
    assert 0 <= float(metrics["accuracy/rotation"]) <= 1


@pytest.mark.parametrize("objective", ["simclr", "byol", "simsiam", "rotation", "simclr+rotation", "byol+rotation"])
def test_loss_falls_on_real_images(tiny_photos: Tensor, objective: str) -> None:
    the_plan = plan(objective)
    built = build_objective(the_plan, CPU)
    optimizer = build_optimizer(the_plan.config.optimizer, built, 0.05)
    losses = []
    for step in range(12):
        loss, _ = built(some_views(built, tiny_photos, step % 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        built.after_update(0.0)
        losses.append(float(loss.detach()))
    assert sum(losses[-3:]) / 3 < sum(losses[:3]) / 3 - 0.02


@pytest.mark.parametrize(
    ("objective", "flags"),
    [
        ("swav", {}),
        ("swav+rotation", {"views": {"small": {"count": 2, "size": 12}}, "swav": {"queue": 40, "queue_from": 0.0}}),
        ("supcon", {"supcon": {"label_noise": 0.3}}),
        ("supcon+rotation", {"rotation": {"noise": 0.3}}),
        ("supervised", {"projector": {"layers": 0}}),
        ("supervised+rotation", {}),
        ("simclr+rotation", {"simclr": {"known_labels": 0.5}}),
        ("simclr", {"simclr": {"decoupled": True}}),
        ("byol+rotation", {"views": {"rotated": {"angles": [0.0, 180.0]}}}),
        ("byol+rotation", {"views": {"rotated": {"angles": [45.0 * i for i in range(8)]}}}),
        ("byol+rotation", {"rotation": {"shared": 3}}),
        ("byol+rotation_supcon", {}),
        ("byol+rotation_cosine", {}),
        ("byol", {"views": {"large": {"rotated": True}}}),
        ("byol+rotation", {"views": {"large": {"rotated": True}, "rotated": {"count": 0}}}),
        ("byol", {"augment": {"jitter": 0.0}}),
        ("simsiam+rotation", {"views": {"rotated": {"count": 1}}}),
    ],
)
def test_loss_falls_in_every_combination_of_the_paper(data: Data, objective: str, flags: dict) -> None:
    first, _, last = losses_of_epochs(trainer_of(objective, data, epochs=3, **flags), 3)
    assert math.isfinite(last)
    assert last < first


@pytest.mark.parametrize("base", ["simclr", "byol", "simsiam", "swav", "moco", "nnclr", "dino", "barlow"])
@pytest.mark.parametrize(
    "views",
    [
        {"large": {"count": 3}},
        {"small": {"count": 2, "size": 12}},
        ONE_SIDED | {"rotated": {"count": 1}},
        {"large": {"count": 2, "target": False}, "target": {"count": 2}},
        {"rotated": ROTATED_ONLINE | {"size": 0.5}},
        ONE_SIDED | {"rotated": ROTATED_ONLINE | {"size": 0.5}},
    ],
    ids=["three", "multi-crop", "one-sided", "two and two", "rotated online", "efficient"],
)
def test_every_base_method_takes_every_list_of_views(data: Data, base: str, views: dict) -> None:
    trainer = trainer_of(f"{base}+rotation", data, views=views, moco={"queue": 64}, nnclr={"queue": 64})
    for step, batch in enumerate(trainer.loader.epoch(0)):
        loss, _ = trainer.step(batch)
        assert torch.isfinite(loss)
        if step == 1:
            break
    online = sum(group.views for group in trainer.objective.groups.values() if group.online)
    assert trainer.objective.step(batch).online().shape[:2] == (online, 32)


def test_only_views_that_somebody_reads_are_made() -> None:
    declared = plan("byol+rotation").config.views.named()
    assert list(groups_read(declared, ["byol"])) == ["large"]
    assert list(groups_read(declared, ["byol", "rotation"])) == ["large", "rotated"]
    assert list(groups_read(declared, ["rotation"])) == ["large", "rotated"]  # copies need their source
    assert list(groups_read(declared, ["jigsaw"])) == []
    own = plan("byol+rotation", **OWN_CROPS).config.views.named()
    assert list(groups_read(own, ["rotation"])) == ["rotated"]
    efficient = plan("byol+rotation", **EFFICIENT).config.views.named()
    assert list(groups_read(efficient, ["byol"])) == ["large", "target", "rotated"]  # the control: online without task


def test_a_base_method_without_a_pair_of_views_is_refused() -> None:
    with pytest.raises(RequestError, match="needs an online view and another view as its target"):
        make("byol", views={"large": {"count": 1}})


def test_more_copies_than_views_are_refused_only_where_they_are_read() -> None:
    views = {"large": {"count": 1, "target": False}, "target": {"count": 1}}
    make("byol", views=views)  # the rotated copies are not made
    with pytest.raises(RequestError, match=r"2 copies, and views\.large\.count is 1"):
        make("byol+rotation", views=views)


def test_views_given_by_hand_are_checked(tiny_photos: Tensor, data: Data) -> None:
    objective = make("byol+rotation")
    x = tiny_photos[:4].float()
    with pytest.raises(RequestError, match="2 views"):
        objective.views(x, step=0)
    with pytest.raises(RequestError, match="index"):
        make("supcon", data).views(x, x, step=0)
    with pytest.raises(RequestError, match="clean"):
        make("byol+jigsaw", image_size=64).views(x, x, step=0)
