"""The promises of the sum, and every combination of the paper."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from effssl.data import Data
from effssl.objectives.objective import Step
from effssl.training.build import make_objective
from effssl.training.loop import Trainer
from effssl.training.optimizers import make_optimizer
from tests.objectives.making import CPU, make, plan, some_views


def test_weight_zero_is_the_base_method_to_the_bit(tiny_photos: Tensor) -> None:
    def three_steps(objective: str) -> list[Tensor]:
        the_plan = plan(objective)
        made = make_objective(the_plan, CPU)
        optimizer = make_optimizer(the_plan.config.optimizer, made, 0.1)
        for step in range(3):
            optimizer.zero_grad()
            made(some_views(tiny_photos, step))[0].backward()
            optimizer.step()
            made.after_update(step / 3)
        return list(made.state_dict().values())

    for a, b in zip(three_steps("byol"), three_steps("byol+0*rotation"), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("base", ["byol", "simclr", "simsiam"])
def test_a_term_changes_neither_weights_nor_losses_nor_gradients_of_the_others(tiny_photos: Tensor, base: str) -> None:
    views = some_views(tiny_photos)
    alone, joint = make(base), make(f"{base}+0.4*rotation")
    for (name, a), b in zip(alone.network.state_dict().items(), joint.network.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    losses = [made.outcomes(views)[base].loss for made in (alone, joint)]
    assert torch.equal(*losses)
    grads = [
        torch.autograd.grad(loss, list(made.network.parameters()))
        for loss, made in zip(losses, (alone, joint), strict=True)
    ]
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a, b)


def test_terms_do_not_register_the_network() -> None:
    objective = make("simclr+rotation")
    names = [name for name, _ in objective.named_parameters()]
    assert len(names) == len(set(names))
    assert not any("network" in name for name in names if name.startswith("terms"))


def test_each_pass_runs_once(tiny_photos: Tensor) -> None:
    objective = make("simclr+simsiam")
    calls = []
    objective.network.encoder.register_forward_pre_hook(lambda *_: calls.append(1))
    objective(some_views(tiny_photos))
    assert len(calls) == (1 if objective.joint_pass else 2)


def test_joint_pass_shares_statistics(tiny_photos: Tensor) -> None:
    network = make("byol").network
    views = some_views(tiny_photos)
    separate, joint = Step(network, views, False).z(), Step(network, views, True).z()
    assert separate.shape == joint.shape
    assert not torch.allclose(separate, joint, atol=1e-4)
    network.eval()
    assert torch.allclose(Step(network, views, False).z(), Step(network, views, True).z(), atol=1e-4)


def test_autocast_returns_float32_losses_near_the_full_ones(tiny_photos: Tensor) -> None:
    views = some_views(tiny_photos)
    for name in ("simclr", "byol", "simsiam", "rotation"):
        full, half = make(name).outcomes(views)[name].loss, make(name, precision="bf16").outcomes(views)[name].loss
        assert half.dtype == torch.float32
        assert float(half) == pytest.approx(float(full), abs=0.05)
        assert float(half) != float(full)


@pytest.mark.parametrize("objective", ["simclr", "byol", "simsiam", "rotation", "simclr+rotation", "byol+rotation"])
def test_loss_falls_on_real_images(tiny_photos: Tensor, objective: str) -> None:
    the_plan = plan(objective)
    made = make_objective(the_plan, CPU)
    optimizer = make_optimizer(the_plan.config.optimizer, made, 0.05)
    losses = []
    for step in range(12):
        loss, _ = made(some_views(tiny_photos, step % 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        made.after_update(0.0)
        losses.append(float(loss))
    assert sum(losses[-3:]) / 3 < sum(losses[:3]) / 3 - 0.02


@pytest.mark.parametrize(
    ("objective", "flags"),
    [
        ("swav", {}),
        ("swav+rotation", {"augment": {"small": 2, "small_size": 12}, "swav": {"queue": 40, "queue_from": 0.0}}),
        ("supcon", {"supcon": {"label_noise": 0.3}}),
        ("supcon+rotation", {"rotation": {"noise": 0.3}}),
        ("supervised", {"projector": {"layers": 0}}),
        ("supervised+rotation", {}),
        ("simclr+rotation", {"simclr": {"known_labels": 0.5}}),
        ("simclr", {"simclr": {"decoupled": True}}),
        ("byol+rotation", {"rotation": {"angles": [0.0, 180.0]}}),
        ("byol+rotation", {"rotation": {"angles": [45.0 * i for i in range(8)]}}),
        ("byol+rotation", {"rotation": {"shared": 3}}),
        ("byol+rotation", {"rotation": {"form": "supcon"}}),
        ("byol+rotation", {"rotation": {"form": "cosine"}}),
        ("byol", {"augment": {"rotate": True}}),
        ("byol+rotation", {"augment": {"rotate": True}, "rotation": {"views": "given"}}),
        ("byol", {"augment": {"jitter": 0.0}}),
        ("simsiam+rotation", {"rotation": {"views": "one"}}),
    ],
)
def test_loss_falls_in_every_combination_of_the_paper(data: Data, objective: str, flags: dict) -> None:
    trainer = Trainer(plan(objective, epochs=3, **flags), data, CPU)
    means = []
    for epoch in range(3):
        losses = [float(trainer.step(views)[0]) for views in trainer.loader.epoch(epoch)]
        means.append(sum(losses) / len(losses))
    assert all(math.isfinite(m) for m in means)
    assert means[2] < means[0]
