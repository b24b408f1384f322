"""The rotation task: labels, weight, head, noise, shared stages, and the other forms of its loss."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.augment.rotate import rotate_quarters
from effssl.data import Data
from effssl.objectives.rotation import angle_labels
from effssl.objectives.supcon import sup_con
from effssl.runtime.errors import RequestError
from tests.objectives.making import BATCH, SIZE, first_views, make, passes_of, some_views


def test_rotation_loss_starts_at_ln4_and_labels_are_exact(tiny_photos: Tensor) -> None:
    objective = make("byol+rotation")
    views = some_views(objective, tiny_photos)
    assert float(objective.outcomes(views)["rotation"].loss) == pytest.approx(math.log(4), abs=0.35)
    angles = views.angles["rotated"]
    assert angles.flatten().bincount(minlength=4).min() > 0
    for x, y, k in zip(views.pixels["large"].flatten(0, 1), views.pixels["rotated"].flatten(0, 1), angles.flatten(),
                       strict=True):  # fmt: skip
        assert torch.equal(torch.rot90(x, int(k), (1, 2)), y)


def test_lambda_is_the_weight_of_the_mean_over_both_views(tiny_photos: Tensor) -> None:
    """λ = 0.2 is base + 0.1·(CE₁ + CE₂)."""
    objective = make("byol + 0.2*rotation")
    views = some_views(objective, tiny_photos)
    total, metrics = objective(views)
    network, head = objective.network, objective.terms["rotation"].r
    logits = head(network.project(views.pixels["rotated"].flatten(0, 1)))
    ce = [F.cross_entropy(part, t) for part, t in zip(logits.chunk(2), views.angles["rotated"], strict=True)]
    assert float(total) == pytest.approx(float(metrics["loss/byol"] + 0.1 * (ce[0] + ce[1])), abs=1e-5)


def test_rotation_alone_predicts_all_four_angles_of_one_view(tiny_photos: Tensor) -> None:
    objective = make("rotation")
    views = some_views(objective, tiny_photos)
    assert {name: len(x) for name, x in views.pixels.items()} == {"large": 1, "rotated": 4}
    assert torch.equal(views.angles["rotated"], torch.arange(4)[:, None].expand(4, BATCH))
    for k, rotated in enumerate(views.pixels["rotated"]):
        assert torch.equal(rotated, torch.rot90(views.pixels["large"][0], k, (2, 3)))
    seen = passes_of(objective)
    objective(views)
    assert seen == [(4 * BATCH, SIZE, True)]


@pytest.mark.parametrize(("on", "width"), [("z", "z_dim"), ("h", "h_dim")])
def test_the_head_reads_z_or_h(tiny_photos: Tensor, on: str, width: str) -> None:
    objective = make("byol+rotation", rotation={"on": on})
    assert objective.terms["rotation"].r[0].in_features == getattr(objective.network, width)
    objective.outcomes(some_views(objective, tiny_photos))["rotation"].loss.backward()
    projector_grads = [p.grad is not None for p in objective.network.projector.parameters()]
    assert all(projector_grads) if on == "z" else not any(projector_grads)


def test_rotated_views_can_be_small(tiny_photos: Tensor) -> None:
    objective = make("byol+rotation", views={"rotated": {"size": 12}})
    seen = passes_of(objective)
    objective(some_views(objective, tiny_photos))
    assert sorted(side for _, side, _ in seen) == [12, SIZE, SIZE]


@pytest.mark.parametrize(("joint", "passes"), [(True, [2 * BATCH]), (False, [BATCH, BATCH])])
def test_rotated_views_in_one_pass_or_one_each(tiny_photos: Tensor, joint: bool, passes: list[int]) -> None:
    objective = make("byol+rotation", views={"rotated": {"joint_pass": joint, "size": 12}})
    seen = passes_of(objective)
    objective(some_views(objective, tiny_photos))
    assert [images for images, side, _ in seen if side == 12] == passes


def test_chance_counts_upright_views() -> None:
    objective = make("byol+rotation", views={"rotated": {"upright": 0.6}})
    assert objective.terms["rotation"].chance == pytest.approx(0.7)


@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0])
def test_angle_noise_is_a_different_angle_fresh_per_view(tiny_photos: Tensor, noise: float) -> None:
    objective = make("byol+rotation", rotation={"noise": noise})
    term, wrong = objective.terms["rotation"], []
    for number in range(40):
        step = objective.step(some_views(objective, tiny_photos, number))
        labels = angle_labels(step)
        wrong.append((term.noisy(step, labels) != labels).float())
    assert torch.stack(wrong).mean() == pytest.approx(noise, abs=0.03)
    if noise == 0.3:
        assert not torch.equal(wrong[0], wrong[1])


@pytest.mark.parametrize("shared", [1, 3, 5, 6])
def test_stages_that_are_not_shared_get_no_gradient_from_the_task(tiny_photos: Tensor, shared: int) -> None:
    objective = make("byol+rotation", rotation={"shared": shared})
    objective.outcomes(some_views(objective, tiny_photos))["rotation"].loss.backward()
    for i, stage in enumerate(objective.network.stages()):
        touched = [p.grad is not None for p in stage.parameters()]
        assert all(touched) if i < shared else not any(touched)
    branch = list(objective.terms["rotation"].branch.parameters())
    assert all(p.grad is not None for p in branch)
    assert bool(branch) == (shared < 6)


def test_supcon_form_contrasts_by_angle(tiny_photos: Tensor) -> None:
    objective = make("byol+rotation_supcon")
    views = some_views(objective, tiny_photos)
    loss = objective.outcomes(views)["rotation_supcon"].loss
    z = objective.network.project(views.pixels["rotated"].flatten(0, 1))
    assert float(loss) == pytest.approx(float(sup_con(z, views.angles["rotated"].flatten(), 0.1)), abs=1e-4)


@pytest.mark.parametrize("angles", [(0.0, 90.0, 180.0, 270.0), (0.0, 180.0)])
def test_cosine_form_compares_two_different_angles_of_a_view(tiny_photos: Tensor, angles: tuple[float, ...]) -> None:
    objective = make("byol+rotation_cosine", views={"rotated": {"angles": list(angles)}})
    views = some_views(objective, tiny_photos)
    seen: list[Tensor] = []
    objective.network.encoder.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    step = objective.step(views)
    loss = float(objective.terms["rotation_cosine"].loss(step).loss.detach())
    one, other = seen  # 2B views at their first and at their second angle
    upright = views.pixels["large"].flatten(0, 1)
    first = (torch.tensor(angles)[views.angles["rotated"].flatten()] / 90).long()
    assert torch.equal(one, rotate_quarters(upright, first))
    at_angle = torch.stack([rotate_quarters(upright, torch.full((len(upright),), int(a // 90))) for a in angles])
    second = (at_angle == other).flatten(2).all(2).float().argmax(0)  # which angle the second pass saw
    assert (at_angle == other).flatten(2).all(2).any(0).all()
    assert not bool((second == views.angles["rotated"].flatten()).any())
    z = [objective.network.project(x) for x in (one, other)]
    assert loss == pytest.approx(float(F.cosine_similarity(*z, dim=1).mean()), abs=1e-5)


def test_rotation_as_augmentation_needs_no_pass_of_its_own(data: Data) -> None:
    views = {"large": {"rotated": True}, "rotated": {"count": 0}}
    plain, turned = first_views(data, "byol"), first_views(data, "byol", views=views)
    for x, y, k in zip(plain.pixels["large"].flatten(0, 1), turned.pixels["large"].flatten(0, 1),
                       turned.angles["large"].flatten(), strict=True):  # fmt: skip
        assert torch.equal(torch.rot90(x, int(k), (1, 2)), y)
    objective = make("byol+rotation", data, views=views)
    seen = passes_of(objective)
    outcome = objective.outcomes(turned)["rotation"]
    assert len(seen) == 2
    assert float(outcome.loss) == pytest.approx(math.log(4), abs=0.4)


def test_examples_for_the_report(tiny_photos: Tensor) -> None:
    objective = make("byol+rotation")
    views = some_views(objective, tiny_photos)
    examples = objective.terms["rotation"].examples(objective.step(views))
    assert examples.names == ["0°", "90°", "180°", "270°"]
    assert examples.logits.shape == (2 * BATCH, 4)
    assert torch.equal(examples.labels, views.angles["rotated"].flatten())
    assert torch.equal(examples.pixels, views.pixels["rotated"].flatten(0, 1))


def test_what_cannot_work_is_refused(data: Data) -> None:
    with pytest.raises(RequestError, match="two different angles"):
        make("byol+rotation", data, views={"rotated": {"angles": [90.0, 90.0]}})
    with pytest.raises(RequestError, match="this network has 6 stages"):
        make("byol+rotation", data, rotation={"shared": 7})
    with pytest.raises(RequestError, match="needs rotated views"):
        make("byol+rotation", data, views={"rotated": {"count": 0}})
    with pytest.raises(RequestError, match="quarter turns"):
        make("byol+rotation_cosine", data, views={"rotated": {"angles": [0.0, 45.0]}})
