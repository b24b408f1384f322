"""NT-Xent, false negatives, the decoupled form."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from effssl.data import Data
from effssl.objectives.simclr import nt_xent, same_class
from tests.objectives.making import first_views, make, random, some_views


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
    plain = make("simclr", data).outcomes(views)["simclr"].loss
    z = random(16, 6)
    assert torch.equal(nt_xent(z, 0.2), nt_xent(z, 0.2, torch.zeros(8, 8, dtype=torch.bool)))
    few = make("simclr", data, simclr={"known_labels": 1e-9}).outcomes(views)["simclr"].loss  # the mask is empty
    assert torch.equal(plain, few)
    some = make("simclr", data, simclr={"known_labels": 1.0}).outcomes(views)["simclr"].loss
    assert some < plain
