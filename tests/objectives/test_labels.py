"""Terms that use labels: SupCon, label noise, known labels."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from effssl.data import ArrayImages, Data
from effssl.objectives.labels import known_labels, noisy_labels
from effssl.objectives.simclr import nt_xent
from effssl.objectives.supcon import sup_con
from effssl.runtime.errors import RequestError
from tests.objectives.making import make, random


def test_sup_con_with_distinct_labels_is_simclr() -> None:
    z = random(16, 6)
    two = z.view(2, 8, 6)
    simclr = nt_xent(two, two, [(0, 1), (1, 0)], 0.2)
    assert float(sup_con(z, torch.arange(8).repeat(2), 0.2)) == pytest.approx(float(simclr), abs=1e-9)


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


@pytest.mark.parametrize(
    ("objective", "flags"), [("supcon", {}), ("supervised", {}), ("simclr", {"simclr": {"known_labels": 0.5}})]
)
def test_terms_with_labels_refuse_data_without(data: Data, objective: str, flags: dict) -> None:
    bare = Data("bare", ArrayImages(data.train.pixels))
    with pytest.raises(RequestError, match="needs labels"):
        make(objective, bare, **flags)
