"""The pretext task and all its knobs."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms.v2.functional as reference
from torch import Tensor

from effssl.augment.rotate import rotate, rotate_and_crop, rotate_quarters, valid_share
from effssl.data import Data
from effssl.data.views import Views
from effssl.objectives.objective import Setting, Step
from effssl.objectives.options import Rotation as Options
from effssl.objectives.rotation import Rotation, frozen_statistics
from effssl.objectives.supcon import sup_con
from effssl.runtime.errors import RequestError
from tests.objectives.making import BATCH, SIZE, first_views, make, some_views


def test_rotation_loss_starts_at_ln4_and_labels_are_exact(tiny_photos: Tensor) -> None:
    objective = make("byol+rotation", rotation={"size": 0})
    views = some_views(tiny_photos)
    outcome = objective.outcomes(views)["rotation"]
    assert float(outcome.loss) == pytest.approx(math.log(4), abs=0.35)

    seen = []
    objective.network.encoder.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    objective.outcomes(views)
    rotated = seen[-1]  # 2B: rotated first views, rotated second views
    turns = torch.randint(4, (2, BATCH), generator=views.generator("angles")).reshape(-1)
    assert turns.bincount(minlength=4).min() > 0
    for x, y, k in zip(torch.cat(views.large), rotated, turns.tolist(), strict=True):
        assert torch.equal(torch.rot90(x, k, (1, 2)), y)


def test_some_views_stay_upright() -> None:
    term = make("byol+rotation", rotation={"upright": 0.6}).terms["rotation"]
    views = Views([], torch.arange(10_000), total=10_000)
    labels = term._labels(Step(None, views)).bincount(minlength=4) / 20_000
    assert labels.tolist() == pytest.approx([0.7, 0.1, 0.1, 0.1], abs=0.01)
    assert term.options.chance == pytest.approx(0.7)
    with pytest.raises(RequestError, match="upright"):
        make("rotation", rotation={"upright": 0.5})


def test_lambda_is_the_weight_of_the_mean_over_both_views(tiny_photos: Tensor) -> None:
    """λ = 0.2 is base + 0.1·(CE₁ + CE₂)."""
    objective, views = make("byol + 0.2*rotation", rotation={"size": 0}), some_views(tiny_photos)
    total, metrics = objective(views)
    turns = torch.randint(4, (2, BATCH), generator=views.generator("angles"))
    network, head = objective.network, objective.terms["rotation"].r
    x = rotate_quarters(torch.cat(views.large), turns.reshape(-1))
    logits = head(network.g(network.f(x)))
    ce = [F.cross_entropy(part, t) for part, t in zip(logits.chunk(2), turns, strict=True)]
    assert float(total) == pytest.approx(float(metrics["loss/byol"] + 0.1 * (ce[0] + ce[1])), abs=1e-5)


def test_rotation_alone_uses_all_four_turns_of_one_view(tiny_photos: Tensor) -> None:
    objective = make("rotation", rotation={"size": 0})
    assert objective.needs.large == 1
    seen = []
    objective.network.encoder.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    objective(some_views(tiny_photos))
    assert len(seen) == 1
    assert len(seen[0]) == 4 * BATCH
    x = some_views(tiny_photos).large[0]
    for k in range(4):
        assert torch.equal(seen[0][k * BATCH : (k + 1) * BATCH], torch.rot90(x, k, (2, 3)))


@pytest.mark.parametrize(("on", "width"), [("z", "z_dim"), ("h", "h_dim")])
def test_rotation_head_sits_where_told(tiny_photos: Tensor, on: str, width: str) -> None:
    objective = make("byol+rotation", rotation={"on": on})
    assert objective.terms["rotation"].r[0].in_features == getattr(objective.network, width)
    objective.outcomes(some_views(tiny_photos))["rotation"].loss.backward()
    projector_grads = [p.grad is not None for p in objective.network.projector.parameters()]
    assert all(projector_grads) if on == "z" else not any(projector_grads)


def test_rotated_views_can_be_small(tiny_photos: Tensor) -> None:
    objective = make("byol+rotation", rotation={"size": 12})
    seen = []
    objective.network.encoder.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[-1]))
    objective(some_views(tiny_photos))
    assert sorted(seen) == [12, SIZE, SIZE]


def test_statistics_can_be_left_alone(tiny_photos: Tensor) -> None:
    views = some_views(tiny_photos)

    def statistics(objective: str, **flags) -> Tensor:
        made = make(objective, **flags)
        made(views)
        return made.network.encoder.backbone.layer4[0].bn2.running_var

    base = statistics("byol")
    assert torch.equal(statistics("byol+rotation", rotation={"update_stats": False}), base)
    assert not torch.equal(statistics("byol+rotation", rotation={"update_stats": True}), base)


def test_frozen_statistics_restores_momentum_after_an_error() -> None:
    norm = torch.nn.BatchNorm1d(3, momentum=0.3)

    def fail() -> None:
        with frozen_statistics(norm, True):
            assert norm.momentum == 0
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert norm.momentum == 0.3


@pytest.mark.parametrize("degrees", [45.0, 30.0, 120.0, 225.0])
def test_any_angle_equals_torchvision_inside_the_valid_square(photos: Tensor, degrees: float) -> None:
    """Rotate by torchvision, then cut the valid square and resize: the same picture, up to sampling twice."""
    x = F.avg_pool2d(photos[:8].float() / 255, 5, 1, 2)  # smooth, so that sampling twice matters little
    share = valid_share(degrees)
    mine = rotate_and_crop(x, torch.full((8,), degrees), torch.full((8,), share))
    turned = reference.rotate(x, degrees, interpolation=reference.InterpolationMode.BILINEAR)
    grid = F.affine_grid(torch.eye(2, 3).mul(share).expand(8, 2, 3), list(x.shape), align_corners=False)
    theirs = F.grid_sample(turned, grid, mode="bilinear", align_corners=False)
    inner = (slice(None), slice(None), slice(2, -2), slice(2, -2))
    assert (mine[inner] - theirs[inner]).abs().max() < 0.06
    assert (mine[inner] - theirs[inner]).abs().mean() < 0.005


def test_same_crop_for_all_angles_unless_told(photos: Tensor) -> None:
    x, labels = photos[:4].float(), torch.tensor([0, 1, 0, 1])
    same = rotate(x, labels, (0.0, 45.0))
    assert not torch.allclose(same[0], x[0])  # 0° is zoomed and sampled like 45°
    own = rotate(x, labels, (0.0, 45.0), per_angle=True)
    assert torch.equal(own[0], x[0])
    assert torch.equal(own[1], same[1])
    exact = rotate(x, labels, (180.0, 270.0))
    assert torch.equal(exact[0], torch.rot90(x[0], 2, (1, 2)))
    assert torch.equal(exact[1], torch.rot90(x[1], 3, (1, 2)))


@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0])
def test_angle_noise_is_a_different_angle_fresh_per_view(data: Data, noise: float) -> None:
    objective = make("byol+rotation", data, rotation={"noise": noise})
    term, wrong = objective.terms["rotation"], []
    for step in range(40):
        views = Views([data.train.pixels[:BATCH].float()] * 2, torch.arange(BATCH), step=step, total=BATCH)
        labels = term._labels(Step(objective.network, views))
        noisy = term._noisy(Step(objective.network, views), labels)
        wrong.append((noisy != labels).float())
    assert torch.stack(wrong).mean() == pytest.approx(noise, abs=0.03)
    if noise == 0.3:
        assert not torch.equal(wrong[0], wrong[1])


def test_angle_noise_to_any_angle_is_right_a_quarter_of_the_time(tiny_photos: Tensor) -> None:
    objective = make("byol+rotation", rotation={"noise": 1.0, "noise_to": "any"})
    term, right = objective.terms["rotation"], []
    for number in range(40):
        step = Step(objective.network, some_views(tiny_photos, number))
        labels = term._labels(step)
        right.append((term._noisy(step, labels) == labels).float())
    assert torch.stack(right).mean() == pytest.approx(0.25, abs=0.03)


def test_rotated_views_in_one_pass_or_one_each(tiny_photos: Tensor) -> None:
    for joint, passes in ((True, [2 * BATCH]), (False, [BATCH, BATCH])):
        objective = make("byol+rotation", rotation={"joint_pass": joint, "size": 12, "normalize": True})
        seen = []
        objective.network.encoder.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0].shape))
        heads = []
        objective.terms["rotation"].r.register_forward_pre_hook(lambda _, args, heads=heads: heads.append(args[0]))
        objective(some_views(tiny_photos))
        assert [shape[0] for shape in seen if shape[-1] == 12] == passes
        assert torch.allclose(heads[0].norm(dim=1), torch.ones(2 * BATCH), atol=1e-5)


@pytest.mark.parametrize("shared", [1, 3, 5, 6])
def test_sharing_depth_leaves_the_rest_untouched(data: Data, shared: int) -> None:
    objective = make("byol+rotation", data, rotation={"shared": shared, "size": 0})
    objective.outcomes(first_views(data, "byol"))["rotation"].loss.backward()
    for i, stage in enumerate(objective.network.stages()):
        touched = [p.grad is not None for p in stage.parameters()]
        assert all(touched) if i < shared else not any(touched)
    branch = list(objective.terms["rotation"].branch.parameters())
    assert all(p.grad is not None for p in branch)
    assert bool(branch) == (shared < 6)


def test_loss_forms(data: Data) -> None:
    views = first_views(data, "byol")
    supcon = make("byol+rotation", data, rotation={"form": "supcon", "size": 0})
    term, step = supcon.terms["rotation"], Step(supcon.network, views)
    labels = term._labels(step)
    features = term._features(step, term._rotated(step, labels))
    assert torch.allclose(term.loss(step).loss, sup_con(features, labels, 0.1), atol=1e-4)
    cosine = make("byol+rotation", data, rotation={"form": "cosine", "size": 0}).outcomes(views)["rotation"].loss
    assert -1 <= float(cosine) <= 1


def test_rotation_as_augmentation(data: Data) -> None:
    flags = {"augment": {"rotate": True}}
    plain, turned = first_views(data, "byol"), first_views(data, "byol", **flags)
    for view, before, turns in zip(turned.large, plain.large, turned.angle.chunk(2), strict=True):
        for x, y, k in zip(before, view, turns.tolist(), strict=True):
            assert torch.equal(torch.rot90(x, k, (1, 2)), y)
    objective = make("byol+rotation", data, rotation={"views": "given"}, **flags)
    calls = []
    objective.network.encoder.register_forward_pre_hook(lambda *_: calls.append(1))
    outcome = objective.outcomes(turned)["rotation"]
    assert len(calls) == 2  # no pass of its own
    assert float(outcome.loss) == pytest.approx(math.log(4), abs=0.4)


def test_wrong_angle_sets_and_depths_are_refused(data: Data) -> None:
    with pytest.raises(RequestError, match="two different angles"):
        make("byol+rotation", data, rotation={"angles": [90.0, 90.0]})
    with pytest.raises(RequestError, match="stages to share"):
        make("byol+rotation", data, rotation={"shared": 7})


def test_rotation_modes_say_what_they_need() -> None:
    network = make("byol").network
    assert Rotation(Options(), network, Setting()).needs.large == 2
    assert Rotation(Options(views="one"), network, Setting()).needs.large == 1
    assert Rotation(Options(views="all"), network, Setting()).mode == "all"
