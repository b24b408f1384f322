"""Every term against an independent computation, and the promises of the sum."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.data.views import Views
from effssl.objectives.objective import Objective, Setting, Step
from effssl.objectives.rotation import Rotation, frozen_statistics
from effssl.objectives.simclr import nt_xent
from effssl.recipes import Plan, resolve
from effssl.training.loop import make_objective
from effssl.training.optimizers import make_optimizer

SIZE, BATCH = 24, 32
CPU = torch.device("cpu")


def plan(objective: str, **flags) -> Plan:
    return resolve({"data": "digits", "objective": objective, "image_size": SIZE, "batch_size": BATCH, **flags})


def make(objective: str, **flags) -> Objective:
    return make_objective(plan(objective, **flags), CPU)


def some_views(tiny_photos: Tensor, step: int = 0) -> Views:
    x = tiny_photos[:BATCH].float() / 127.5 - 1
    noise = torch.randn(2, *x.shape, generator=torch.Generator().manual_seed(step)) * 0.1
    return Views([x + noise[0], (x + noise[1]).flip(-1)], torch.arange(BATCH), step=step, total=BATCH)


# ---------------------------------------------------------------------------------------------------------------
# SimCLR


def nt_xent_by_loop(z: Tensor, tau: float) -> float:
    """The definition, anchor by anchor."""
    n = len(z)
    total = 0.0
    for a in range(n):
        similar = [float(F.cosine_similarity(z[a], z[b], dim=0)) / tau for b in range(n)]
        partner = (a + n // 2) % n
        total -= similar[partner] - math.log(sum(math.exp(s) for b, s in enumerate(similar) if b != a))
    return total / n


@pytest.mark.parametrize("tau", [0.1, 0.2, 1.0])
def test_nt_xent_equals_the_loop(tau: float) -> None:
    z = torch.randn(12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(nt_xent(z, tau)) == pytest.approx(nt_xent_by_loop(z, tau), abs=1e-9)


def test_simclr_base_temperature_is_a_factor(tiny_photos: Tensor) -> None:
    views = some_views(tiny_photos)
    plain = make("simclr").outcomes(views)["simclr"].loss
    scaled = make("simclr", simclr={"base_temperature": 0.07}).outcomes(views)["simclr"].loss
    assert float(scaled / plain) == pytest.approx(0.2 / 0.07, rel=1e-5)


# ---------------------------------------------------------------------------------------------------------------
# BYOL and SimSiam


def cosine(a: Tensor, b: Tensor) -> float:
    return float(((a / a.norm(dim=1, keepdim=True)) * (b / b.norm(dim=1, keepdim=True))).sum(1).mean())


def test_byol_by_hand(tiny_photos: Tensor) -> None:
    objective, views = make("byol"), some_views(tiny_photos)
    byol, network = objective.terms["byol"], objective.network
    loss = float(objective.outcomes(views)["byol"].loss)
    x1, x2 = views.large
    p1, p2 = (byol.q(network.g(network.f(x))) for x in (x1, x2))
    t1, t2 = (byol.target.g(byol.target.f(x)) for x in (x1, x2))
    assert loss == pytest.approx(-(cosine(p1, t2) + cosine(p2, t1)) / 2, abs=1e-5)
    assert -1 <= loss <= 1
    big = make("byol", byol={"loss_scale": 4.0}).outcomes(views)["byol"].loss
    assert float(big) == pytest.approx(4 * loss, rel=1e-5)


def test_byol_target_gets_no_gradient_and_moves_by_its_share(tiny_photos: Tensor) -> None:
    objective = make("byol", byol={"momentum": 0.9, "momentum_end": 0.0})
    byol, network = objective.terms["byol"], objective.network
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    objective(some_views(tiny_photos))[0].backward()
    assert all(p.grad is None for p in byol.target.parameters())
    before = [p.clone() for p in byol.target.parameters()]
    optimizer.step()
    objective.after_update(0.5)
    for old, new, online in zip(before, byol.target.parameters(), network.parameters(), strict=True):
        assert torch.allclose(new, 0.9 * old + 0.1 * online, atol=1e-7)
    assert not any(torch.equal(a, b) for a, b in zip(before, byol.target.parameters(), strict=True) if a.ndim > 1)


def test_byol_target_keeps_its_own_batch_norm_statistics(tiny_photos: Tensor) -> None:
    objective = make("byol")
    target, online = objective.terms["byol"].target.encoder.backbone.bn1, objective.network.encoder.backbone.bn1
    objective(some_views(tiny_photos))
    assert target.running_mean.abs().sum() > 0  # it ran in train mode
    assert target.running_mean.data_ptr() != online.running_mean.data_ptr()


def test_byol_momentum_goes_to_its_end_by_cosine(tiny_photos: Tensor) -> None:
    objective = make("byol", byol={"momentum": 0.5, "momentum_end": 1.0})
    byol = objective.terms["byol"]
    for p in objective.network.parameters():
        p.data.add_(1)
    before = [p.clone() for p in byol.target.parameters()]
    objective.after_update(1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, byol.target.parameters(), strict=True))
    objective.after_update(0.5)  # τ = 0.75
    moved = next(byol.target.parameters()) - before[0]
    assert torch.allclose(moved, torch.full_like(moved, 0.25), atol=1e-5)


def test_simsiam_by_hand_and_stop_gradient(tiny_photos: Tensor) -> None:
    objective, views = make("simsiam"), some_views(tiny_photos)
    term, network = objective.terms["simsiam"], objective.network
    loss = objective.outcomes(views)["simsiam"].loss
    z1, z2 = (network.g(network.f(x)) for x in views.large)
    p1, p2 = term.q(z1), term.q(z2)
    assert float(loss) == pytest.approx(-(cosine(p1, z2) + cosine(p2, z1)) / 2, abs=1e-5)
    grads = []
    for stop in (True, False):
        objective = make("simsiam", simsiam={"stop_gradient": stop})
        objective(views)[0].backward()
        grads.append(next(objective.network.parameters()).grad.clone())
    assert not torch.allclose(*grads, rtol=1e-3)


def test_simsiam_predictor_has_a_constant_learning_rate() -> None:
    from effssl.training.optimizers import set_learning_rate

    the_plan = plan("simsiam+rotation", lr=0.1)
    objective = make_objective(the_plan, CPU)
    optimizer = make_optimizer(the_plan.config.optimizer, objective, 0.1)
    set_learning_rate(optimizer, 0.01)
    predictor = {id(p) for p in objective.terms["simsiam"].q.parameters()}
    for group in optimizer.param_groups:
        held = {id(p) for p in group["params"]} == predictor
        assert group["lr"] == (0.1 if held else 0.01)
    counted = sum(len(group["params"]) for group in optimizer.param_groups)
    assert counted == len([p for p in objective.parameters() if p.requires_grad])


# ---------------------------------------------------------------------------------------------------------------
# Rotation


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


def test_lambda_is_the_weight_of_the_mean_over_both_views(tiny_photos: Tensor) -> None:
    """λ = 0.2 is base + 0.1·(CE₁ + CE₂)."""
    objective, views = make("byol + 0.2*rotation", rotation={"size": 0}), some_views(tiny_photos)
    total, metrics = objective(views)
    turns = torch.randint(4, (2, BATCH), generator=views.generator("angles"))
    network, head = objective.network, objective.terms["rotation"].r
    from effssl.augment.rotate import rotate_quarters

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


# ---------------------------------------------------------------------------------------------------------------
# The sum


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


def test_autocast_returns_float32_losses_near_the_full_ones(tiny_photos: Tensor) -> None:
    views = some_views(tiny_photos)
    for name in ("simclr", "byol", "simsiam", "rotation"):
        full, half = make(name).outcomes(views)[name].loss, make(name, precision="bf16").outcomes(views)[name].loss
        assert half.dtype == torch.float32
        assert float(half) == pytest.approx(float(full), abs=0.05)
        assert float(half) != float(full)


def test_rotation_modes_say_what_they_need() -> None:
    network = make("byol").network
    from effssl.objectives.options import Rotation as Options

    assert Rotation(Options(), network, Setting()).needs.large == 2
    assert Rotation(Options(views="one"), network, Setting()).needs.large == 1
    assert Rotation(Options(views="all"), network, Setting()).mode == "all"
