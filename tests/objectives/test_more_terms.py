"""SwAV, MoCo, SupCon, supervised, jigsaw, and the knobs of SimCLR and rotation, against independent computations."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms.v2.functional as reference
from torch import Tensor

from effssl.augment.rotate import rotate, rotate_and_crop, valid_share
from effssl.data import ArrayImages, Data
from effssl.data.views import Views
from effssl.errors import RequestError
from effssl.objectives.jigsaw import cut_patches, far_permutations
from effssl.objectives.labels import known_labels, noisy_labels
from effssl.objectives.moco import info_nce
from effssl.objectives.objective import Objective
from effssl.objectives.simclr import nt_xent, same_class
from effssl.objectives.supcon import sup_con
from effssl.objectives.swav import sinkhorn
from effssl.recipes import Plan, resolve
from effssl.training.loop import Trainer, make_objective

CPU = torch.device("cpu")
SIZE, BATCH = 24, 32


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def data(tiny_photos: Tensor) -> Data:
    return Data("photos", ArrayImages(tiny_photos, torch.arange(256) % 4, list("abcd")))


def plan(objective: str, **flags) -> Plan:
    first = objective.split("+")[0].strip()
    recipe = f"cpu-{first}" if first in ("byol", "simclr", "simsiam", "rotation") else "cpu-byol"
    base = {"data": "x", "recipe": recipe, "objective": objective, "image_size": SIZE, "batch_size": BATCH, "lr": 0.05}
    return resolve(base | flags)


def make(data: Data, objective: str, **flags) -> Objective:
    return make_objective(plan(objective, **flags), CPU, data)


def first_views(data: Data, objective: str, **flags) -> Views:
    return next(Trainer(plan(objective, **flags), data, CPU).loader.epoch(0))


# ---------------------------------------------------------------------------------------------------------------
# SwAV


@pytest.mark.parametrize("epsilon", [0.05, 0.03, 0.01])
def test_sinkhorn_marginals(epsilon: float) -> None:
    scores = F.normalize(random(64, 16), dim=1) @ F.normalize(random(20, 16, seed=1), dim=1).T
    q = sinkhorn(scores, epsilon, 200)
    assert torch.isfinite(q).all()
    assert torch.allclose(q.sum(1), torch.ones(64), atol=1e-5)
    assert torch.allclose(q.sum(0), torch.full((20,), 64 / 20), rtol=0.05)
    hard = sinkhorn(100 * scores, 0.01, 3)  # far beyond what exp could hold
    assert torch.isfinite(hard).all()
    assert torch.allclose(hard.sum(1), torch.ones(64), atol=1e-5)


def test_sinkhorn_equals_the_reference_form() -> None:
    """The published loop: scale to sum one, rows to 1/K, columns to 1/B, three times, then columns to one."""
    scores = random(10, 6) / 10
    q = torch.exp(scores / 0.05).T
    q /= q.sum()
    for _ in range(3):
        q /= q.sum(1, keepdim=True) * 6
        q /= q.sum(0, keepdim=True) * 10
    assert torch.allclose(sinkhorn(scores, 0.05, 3).double(), (q * 10).T, atol=1e-5)


def test_swav_by_hand_with_small_crops(data: Data) -> None:
    flags = {"augment": {"small": 2, "small_size": 16}, "swav": {"prototypes": 7, "freeze_epochs": 0.0}}
    objective, views = make(data, "swav", **flags), first_views(data, "swav", **flags)
    assert [len(views.large), len(views.small), views.small[0].shape[-1]] == [2, 2, 16]
    term, network = objective.terms["swav"], objective.network
    loss = float(objective.outcomes(views)["swav"].loss)
    z = [F.normalize(network.g(network.f(x)), dim=1) for x in (*views.large, *views.small)]
    scores = [x @ term.prototypes.weight.T for x in z]
    expected = 0.0
    for i in (0, 1):
        q = sinkhorn(scores[i], 0.05, 3)
        for v in range(4):
            if v != i:
                expected -= float((q * (scores[v] / 0.1).log_softmax(1)).sum(1).mean()) / 3 / 2
    assert loss == pytest.approx(expected, abs=1e-4)


def test_swav_prototypes_freeze_and_stay_unit(data: Data) -> None:
    trainer = Trainer(plan("swav", swav={"freeze_epochs": 2 / 8}), data, CPU)  # 8 steps per epoch: two steps
    weights = [trainer.objective.terms["swav"].prototypes.weight.detach().clone()]
    for views in trainer.loader.epoch(0):
        trainer.step(views)
        weights.append(trainer.objective.terms["swav"].prototypes.weight.detach().clone())
    assert torch.allclose(weights[0], weights[2], atol=1e-6)
    assert not torch.allclose(weights[2], weights[3], atol=1e-6)
    for w in weights:
        assert torch.allclose(w.norm(dim=1), torch.ones(len(w)), atol=1e-5)


@pytest.mark.parametrize("length", [10, 32, 50])  # shorter than the batch, equal, and no multiple of it
def test_swav_queue_of_any_length(data: Data, length: int) -> None:
    trainer = Trainer(plan("swav", swav={"queue": length, "queue_from": 0.0}), data, CPU)
    term, kept = trainer.objective.terms["swav"], []
    for views in trainer.loader.epoch(0):
        trainer.step(views)
        kept.insert(0, term.recent[0])
        expected = torch.cat(kept)[:length]
        assert term.queue.shape == (2, length, trainer.objective.network.z_dim)
        assert torch.equal(term.queue[0, : len(expected)], expected)
    again = Trainer(plan("swav", swav={"queue": length, "queue_from": 0.0}), data, CPU)
    again.restore(trainer.state())
    assert again.objective.terms["swav"].filled == term.filled == 8 * BATCH


# ---------------------------------------------------------------------------------------------------------------
# MoCo


def test_info_nce_equals_the_loop() -> None:
    q, k, queue = (F.normalize(random(n, 5, seed=n), dim=1) for n in (6, 7, 9))
    k = k[:6]
    total = 0.0
    for a in range(6):
        positive = math.exp(float(q[a] @ k[a]) / 0.1)
        total -= math.log(positive / (positive + sum(math.exp(float(q[a] @ n) / 0.1) for n in queue)))
    assert float(info_nce(q, k, queue, 0.1)) == pytest.approx(total / 6, abs=1e-9)


def test_moco_queue_is_first_in_first_out(data: Data) -> None:
    trainer = Trainer(plan("moco", moco={"queue": 100, "momentum": 0.9}), data, CPU)
    term = trainer.objective.terms["moco"]
    expected = list(term.queue)
    for views in trainer.loader.epoch(0):
        trainer.step(views)
        for key in term.recent:
            expected.append(key)
            expected.pop(0)
        start = int(term.position)
        assert torch.equal(torch.cat([term.queue[start:], term.queue[:start]]), torch.stack(expected))
    assert all(p.grad is None for p in term.target.parameters())


def test_moco_keys_are_shuffled_in_groups_and_come_back_in_order(data: Data) -> None:
    objective, views = make(data, "moco"), first_views(data, "moco")
    from effssl.objectives.objective import Step

    term = objective.terms["moco"]
    seen = []
    term.target.encoder.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    grouped = term.keys(Step(objective.network, views), views.large[0], "x")
    assert [len(x) for x in seen] == [BATCH // 8] * 8
    assert not torch.equal(torch.cat(seen), views.large[0])
    term.target.eval()  # with fixed statistics, grouping must not matter
    plain = F.normalize(term.target.g(term.target.f(views.large[0])), dim=1)
    assert torch.allclose(term.keys(Step(objective.network, views), views.large[0], "x"), plain, atol=1e-5)
    assert not torch.allclose(grouped, plain, atol=1e-3)


@pytest.mark.parametrize("symmetric", [True, False])
def test_moco_tells_images_apart(data: Data, symmetric: bool) -> None:
    """Its loss first rises, while random keys leave the queue; what counts is that it ends far below chance."""
    options = {"queue": 64, "key_bn_groups": 2, "symmetric": symmetric}
    trainer = Trainer(plan("moco+0.1*rotation", moco=options), data, CPU)
    for epoch in range(3):
        losses = [float(trainer.step(views)[1]["loss/moco"]) for views in trainer.loader.epoch(epoch)]
    chance = math.log(65) * (2 if symmetric else 1)
    assert sum(losses) / len(losses) < 0.9 * chance


def test_moco_groups_must_divide_the_batch(data: Data) -> None:
    with pytest.raises(RequestError, match="does not divide"):
        make(data, "moco", moco={"key_bn_groups": 5})


# ---------------------------------------------------------------------------------------------------------------
# Labels: SupCon, supervised, false negatives


def test_sup_con_with_distinct_labels_is_simclr() -> None:
    z = random(16, 6)
    assert float(sup_con(z, torch.arange(8).repeat(2), 0.2)) == pytest.approx(float(nt_xent(z, 0.2)), abs=1e-9)


def test_sup_con_equals_the_loop() -> None:
    z, labels, tau = F.normalize(random(10, 4), dim=1), torch.tensor([0, 1, 2, 0, 1] * 2), 0.3
    total = 0.0
    for a in range(10):
        denominator = sum(math.exp(float(z[a] @ z[b]) / tau) for b in range(10) if b != a)
        positives = [p for p in range(10) if p != a and labels[p] == labels[a]]
        total -= sum(math.log(math.exp(float(z[a] @ z[p]) / tau) / denominator) for p in positives) / len(positives)
    assert float(sup_con(z, labels, tau)) == pytest.approx(total / 10, abs=1e-9)


@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0])
def test_noise_fractions_come_out_right(fraction: float) -> None:
    labels = torch.arange(5000) % 10
    noisy = noisy_labels(labels, 10, fraction, seed=3)
    assert (noisy != labels).float().mean() == pytest.approx(fraction, abs=1e-6)
    assert torch.equal(noisy, noisy_labels(labels, 10, fraction, seed=3))
    if fraction == 1.0:
        shares = torch.stack([((noisy - labels) % 10 == s).float().mean() for s in range(1, 10)])
        assert (shares - 1 / 9).abs().max() < 0.02  # all other classes alike


def test_known_labels_are_a_share_of_every_class() -> None:
    labels = torch.arange(1000) % 10
    known = known_labels(labels, 0.3, seed=0)
    assert labels[known].bincount().tolist() == [30] * 10


def test_false_negatives_are_exactly_the_known_pairs() -> None:
    labels, known = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([True, True, False, True, True])
    both = {(0, 1), (1, 0), (3, 4), (4, 3)}
    assert {tuple(pair) for pair in same_class(labels, known, "both").nonzero().tolist()} == both
    anchor = both | {(0, 2), (1, 2)}
    assert {tuple(pair) for pair in same_class(labels, known, "anchor").nonzero().tolist()} == anchor


def test_dropped_pairs_leave_the_denominator_only() -> None:
    z, tau = F.normalize(random(8, 5), dim=1), 0.2
    drop = torch.zeros(4, 4, dtype=torch.bool)
    drop[0, 2] = True  # images 0 → 2
    total = 0.0
    for a in range(8):
        others = [b for b in range(8) if b != a and not drop[a % 4, b % 4]]
        partner = (a + 4) % 8
        denominator = sum(math.exp(float(z[a] @ z[b]) / tau) for b in others)
        total -= math.log(math.exp(float(z[a] @ z[partner]) / tau) / denominator)
    assert float(nt_xent(z, tau, drop)) == pytest.approx(total / 8, abs=1e-9)


def test_decoupled_leaves_the_positive_out() -> None:
    z, tau = F.normalize(random(8, 5), dim=1), 0.2
    total = 0.0
    for a in range(8):
        partner = (a + 4) % 8
        others = [b for b in range(8) if b not in (a, partner)]
        total += math.log(sum(math.exp(float(z[a] @ z[b]) / tau) for b in others)) - float(z[a] @ z[partner]) / tau
    assert float(nt_xent(z, tau, decoupled=True)) == pytest.approx(total / 8, abs=1e-9)


def test_no_known_labels_is_plain_simclr_to_the_bit(data: Data) -> None:
    views = first_views(data, "simclr")
    plain = make(data, "simclr").outcomes(views)["simclr"].loss
    z = random(16, 6)
    assert torch.equal(nt_xent(z, 0.2), nt_xent(z, 0.2, torch.zeros(8, 8, dtype=torch.bool)))
    few = make(data, "simclr", simclr={"known_labels": 1e-9}).outcomes(views)["simclr"].loss  # the mask is empty
    assert torch.equal(plain, few)
    some = make(data, "simclr", simclr={"known_labels": 1.0}).outcomes(views)["simclr"].loss
    assert some < plain


@pytest.mark.parametrize(
    ("objective", "flags"), [("supcon", {}), ("supervised", {}), ("simclr", {"simclr": {"known_labels": 0.5}})]
)
def test_terms_with_labels_refuse_data_without(data: Data, objective: str, flags: dict) -> None:
    bare = Data("bare", ArrayImages(data.train.pixels))
    with pytest.raises(RequestError, match="needs labels"):
        make(bare, objective, **flags)


# ---------------------------------------------------------------------------------------------------------------
# Jigsaw


def test_permutations_are_far_apart_and_reproducible() -> None:
    perms = far_permutations(100)
    assert torch.equal(perms.sort(1).values, torch.arange(9).expand(100, 9))
    assert len({tuple(p) for p in perms.tolist()}) == 100
    distance = (perms[:, None] != perms[None]).sum(2).float()
    assert distance.sum() / (100 * 99) > 7.9  # random permutations: 8 on average, these: more
    drawn = torch.stack([torch.randperm(9, generator=torch.Generator().manual_seed(s)) for s in range(100)])
    random_distance = (drawn[:, None] != drawn[None]).sum(2).float()
    off = ~torch.eye(100, dtype=torch.bool)
    assert distance[off].mean() > random_distance[off].mean() + 0.05
    assert distance[off].min() >= 2
    assert not torch.equal(perms, far_permutations(100, seed=1))


def test_patches_lie_in_their_cells(photos: Tensor) -> None:
    x = photos[:4].float()
    zero = torch.zeros(4, 9, 2)
    patches = cut_patches(x, zero)
    assert patches.shape == (4, 9, 3, 24, 24)  # 96 px: cells of 32, patches of 24
    for k in range(9):
        top, left = 32 * (k // 3), 32 * (k % 3)
        assert torch.equal(patches[:, k], x[:, :, top : top + 24, left : left + 24])
    last = cut_patches(x, zero + 0.999)
    assert torch.equal(last[:, 8], x[:, :, 72:96, 72:96])


def test_jigsaw_trains_and_refuses_small_images(photos: Tensor, data: Data) -> None:
    big = Data("photos", ArrayImages(photos, torch.arange(64) % 4, list("abcd")))
    objective = make(big, "byol+jigsaw+rotation", image_size=64)
    views = first_views(big, "byol+jigsaw+rotation", image_size=64)
    assert views.clean is not None
    loss = objective.outcomes(views)["jigsaw"].loss
    assert float(loss) == pytest.approx(math.log(100), abs=0.6)
    with pytest.raises(RequestError, match="at least 64"):
        make(data, "byol+jigsaw")


# ---------------------------------------------------------------------------------------------------------------
# Rotation, complete


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
    objective = make(data, "byol+rotation", rotation={"noise": noise})
    from effssl.objectives.objective import Step

    term, wrong = objective.terms["rotation"], []
    for step in range(40):
        views = Views([data.train.pixels[:BATCH].float()] * 2, torch.arange(BATCH), step=step, total=BATCH)
        labels = term._labels(Step(objective.network, views))
        noisy = term._noisy(Step(objective.network, views), labels)
        wrong.append((noisy != labels).float())
    assert torch.stack(wrong).mean() == pytest.approx(noise, abs=0.03)
    if noise == 0.3:
        assert not torch.equal(wrong[0], wrong[1])


@pytest.mark.parametrize("shared", [1, 3, 5, 6])
def test_sharing_depth_leaves_the_rest_untouched(data: Data, shared: int) -> None:
    objective = make(data, "byol+rotation", rotation={"shared": shared, "size": 0})
    objective.outcomes(first_views(data, "byol"))["rotation"].loss.backward()
    for i, stage in enumerate(objective.network.stages()):
        touched = [p.grad is not None for p in stage.parameters()]
        assert all(touched) if i < shared else not any(touched)
    branch = list(objective.terms["rotation"].branch.parameters())
    assert all(p.grad is not None for p in branch)
    assert bool(branch) == (shared < 6)


def test_loss_forms(data: Data) -> None:
    views = first_views(data, "byol")
    supcon = make(data, "byol+rotation", rotation={"form": "supcon", "size": 0})
    from effssl.objectives.objective import Step

    term, step = supcon.terms["rotation"], Step(supcon.network, views)
    labels = term._labels(step)
    features = term._features(step, term._rotated(step, labels))
    assert torch.allclose(term.loss(step).loss, sup_con(features, labels, 0.1), atol=1e-4)
    cosine = make(data, "byol+rotation", rotation={"form": "cosine", "size": 0}).outcomes(views)["rotation"].loss
    assert -1 <= float(cosine) <= 1


def test_rotation_as_augmentation(data: Data) -> None:
    flags = {"augment": {"rotate": True}}
    plain, turned = first_views(data, "byol"), first_views(data, "byol", **flags)
    for view, before, turns in zip(turned.large, plain.large, turned.angle.chunk(2), strict=True):
        for x, y, k in zip(before, view, turns.tolist(), strict=True):
            assert torch.equal(torch.rot90(x, k, (1, 2)), y)
    objective = make(data, "byol+rotation", rotation={"views": "given"}, **flags)
    calls = []
    objective.network.encoder.register_forward_pre_hook(lambda *_: calls.append(1))
    outcome = objective.outcomes(turned)["rotation"]
    assert len(calls) == 2  # no pass of its own
    assert float(outcome.loss) == pytest.approx(math.log(4), abs=0.4)


def test_wrong_angle_sets_and_depths_are_refused(data: Data) -> None:
    with pytest.raises(RequestError, match="two different angles"):
        make(data, "byol+rotation", rotation={"angles": [90.0, 90.0]})
    with pytest.raises(RequestError, match="stages to share"):
        make(data, "byol+rotation", rotation={"shared": 7})


# ---------------------------------------------------------------------------------------------------------------
# Every combination of the paper


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
def test_loss_falls_on_real_images(data: Data, objective: str, flags: dict) -> None:
    trainer = Trainer(plan(objective, epochs=3, **flags), data, CPU)
    means = []
    for epoch in range(3):
        losses = [float(trainer.step(views)[0]) for views in trainer.loader.epoch(epoch)]
        means.append(sum(losses) / len(losses))
    assert all(math.isfinite(m) for m in means)
    assert means[2] < means[0]
