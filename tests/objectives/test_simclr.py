"""NT-Xent, false negatives, the decoupled form."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.data import Data
from effssl.objectives.simclr import nt_xent, same_class
from tests.objectives.making import ONE_SIDED, ROTATED_ONLINE, first_views, make, random, some_views

TWO = [(0, 1), (1, 0)]


def nt_xent_by_loop(views: Tensor, tau: float, excluded=lambda anchor, other: False, decoupled: bool = False) -> float:
    """The definition for V views that are online and targets: anchor by anchor, positive by positive."""
    v, b, _ = views.shape
    every = [(i, j) for i in range(v) for j in range(b)]

    def similarity(one: tuple[int, int], other: tuple[int, int]) -> float:
        return float(F.cosine_similarity(views[one], views[other], dim=0)) / tau

    losses = []
    for anchor in every:
        others = [o for o in every if o[1] != anchor[1] and not excluded(anchor[1], o[1])]
        negatives = sum(math.exp(similarity(anchor, other)) for other in others)
        for view in range(v):
            if view != anchor[0]:
                positive = similarity(anchor, (view, anchor[1]))
                losses.append(math.log(negatives + (0 if decoupled else math.exp(positive))) - positive)
    return sum(losses) / len(losses)


@pytest.mark.parametrize("tau", [0.1, 0.2, 1.0])
@pytest.mark.parametrize("count", [2, 4])
def test_nt_xent_equals_the_loop(tau: float, count: int) -> None:
    z = random(count, 6, 5)
    pairs = [(v, t) for v in range(count) for t in range(count) if v != t]
    assert float(nt_xent(z, z, pairs, tau)) == pytest.approx(nt_xent_by_loop(z, tau), abs=1e-9)


def test_two_views_are_the_published_loss() -> None:
    """All 2B − 1 other views in the denominator, the positive included."""
    z, tau = F.normalize(random(2, 6, 5), dim=2), 0.2
    flat, total = z.flatten(0, 1), 0.0
    for a in range(12):
        similar = [float(flat[a] @ flat[b]) / tau for b in range(12)]
        total -= similar[(a + 6) % 12] - math.log(sum(math.exp(s) for b, s in enumerate(similar) if b != a))
    assert float(nt_xent(z, z, TWO, tau)) == pytest.approx(total / 12, abs=1e-9)


def test_targets_without_a_gradient_and_extra_online_views_by_the_loop(tiny_photos: Tensor) -> None:
    objective = make("simclr+rotation", views=ONE_SIDED | {"rotated": ROTATED_ONLINE})
    step = objective.step(some_views(objective, tiny_photos))
    loss = float(objective.terms["simclr"].loss(step).loss.detach())
    z = F.normalize(step.online().detach(), dim=2).double()  # 3×B×D
    y = F.normalize(step.targets(), dim=2).double()[0]  # B×D
    total, tau = 0.0, 0.2
    for v in range(3):
        for i in range(len(y)):
            positive = float(z[v, i] @ y[i]) / tau
            logits = [float(z[v, i] @ y[j]) / tau for j in range(len(y)) if j != i]
            logits += [float(z[v, i] @ z[u, j]) / tau for u in range(3) for j in range(len(y)) if j != i]
            total -= positive - math.log(math.exp(positive) + sum(map(math.exp, logits)))
    assert loss == pytest.approx(total / (3 * len(y)), abs=1e-4)


def test_simclr_base_temperature_is_a_factor(tiny_photos: Tensor) -> None:
    plain, scaled = make("simclr"), make("simclr", simclr={"base_temperature": 0.07})
    losses = [built.outcomes(some_views(built, tiny_photos))["simclr"].loss for built in (plain, scaled)]
    assert float(losses[1] / losses[0]) == pytest.approx(0.2 / 0.07, rel=1e-5)


def test_false_negatives_are_exactly_the_known_pairs() -> None:
    labels, known = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([True, True, False, True, True])
    both = {(0, 1), (1, 0), (3, 4), (4, 3)}
    assert {tuple(pair) for pair in same_class(labels, known, "both").nonzero().tolist()} == both
    anchor = both | {(0, 2), (1, 2)}
    assert {tuple(pair) for pair in same_class(labels, known, "anchor").nonzero().tolist()} == anchor


def test_dropped_pairs_leave_the_denominator_only() -> None:
    z, tau = random(2, 4, 5), 0.2
    drop = torch.zeros(4, 4, dtype=torch.bool)
    drop[0, 2] = True  # images 0 → 2
    expected = nt_xent_by_loop(z, tau, lambda anchor, other: bool(drop[anchor, other]))
    assert float(nt_xent(z, z, TWO, tau, drop)) == pytest.approx(expected, abs=1e-9)


def test_decoupled_leaves_the_positive_out() -> None:
    z, tau = random(2, 4, 5), 0.2
    expected = nt_xent_by_loop(z, tau, decoupled=True)
    assert float(nt_xent(z, z, TWO, tau, decoupled=True)) == pytest.approx(expected, abs=1e-9)


def test_no_known_labels_is_plain_simclr_to_the_bit(data: Data) -> None:
    views = first_views(data, "simclr")
    plain = make("simclr", data).outcomes(views)["simclr"].loss
    z = random(2, 8, 6)
    assert torch.equal(nt_xent(z, z, TWO, 0.2), nt_xent(z, z, TWO, 0.2, torch.zeros(8, 8, dtype=torch.bool)))
    few = make("simclr", data, simclr={"known_labels": 1e-9}).outcomes(views)["simclr"].loss  # the mask is empty
    assert torch.equal(plain, few)
    some = make("simclr", data, simclr={"known_labels": 1.0}).outcomes(views)["simclr"].loss
    assert some < plain
