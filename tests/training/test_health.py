from __future__ import annotations

import math

import pytest
import torch

from effssl.training.health import Look, effective_rank, spread, verdict


def test_spread_is_one_for_random_directions_and_zero_for_one_point() -> None:
    torch.manual_seed(0)
    assert spread(torch.randn(2000, 64)) == pytest.approx(1, abs=0.02)
    assert spread(torch.ones(100, 64) + 1e-4 * torch.randn(100, 64)) < 0.001


def test_effective_rank_counts_directions() -> None:
    torch.manual_seed(0)
    assert effective_rank(torch.randn(4000, 32)) == pytest.approx(32, rel=0.02)
    low = torch.randn(500, 3) @ torch.linalg.qr(torch.randn(32, 3)).Q.T
    assert effective_rank(low) == pytest.approx(3, rel=0.05)
    assert effective_rank(torch.ones(50, 8)) == 1.0
    two = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert effective_rank(two) == pytest.approx(math.exp(math.log(2)))


START = Look(0.3, 0.28, 90, 80, 25.0)


@pytest.mark.parametrize(
    ("looks", "word"),
    [
        ([START], "too early to tell"),
        ([START, Look(0.6, 0.7, 70, 40, 33.0)], "learning"),
        ([START, Look(0.6, 0.7, 70, 40, 25.2)], "too early to tell"),
        ([START, Look(0.6, 0.01, 70, 40, 33.0)], "collapsing"),
        ([START, Look(0.01, 0.7, 70, 40, 33.0)], "collapsing"),
        ([START, Look(0.3, 0.1, 70, 40, 33.0)], "collapsing"),
        ([START, Look(0.6, 0.7, 70, 1.1, 33.0)], "collapsing"),
        ([START] * 3 + [Look(0.3, 0.3, 20, 20, 24.0)], "collapsing"),
        ([Look(0.3, 0.28, 90, 80), Look(0.6, 0.7, 120, 80)], "learning"),
        ([Look(0.3, 0.28, 90, 80), Look(0.3, 0.3, 90, 80)], "too early to tell"),
    ],
)
def test_verdicts(looks: list[Look], word: str) -> None:
    said, why = verdict(looks)
    assert said == word
    assert why


def test_rotation_accuracy_is_a_sign_of_learning_without_labels() -> None:
    looks = [Look(0.3, 0.28, 90, 80), Look(0.3, 0.3, 90, 80)]
    assert verdict(looks, 0.6)[0] == "learning"
    assert verdict(looks, 0.26)[0] == "too early to tell"
    grown = [looks[0], Look(0.6, 0.7, 120, 80)]
    assert verdict(grown, 0.26)[0] == "too early to tell"  # more directions, but the task is at chance
    assert verdict(grown)[0] == "learning"


def test_too_few_images_are_not_called_collapsed() -> None:
    assert verdict([START, Look(0.3, 0.3, 1.0, 1.0, 90.0, sampled=2)])[0] == "too early to tell"


def test_chance_depends_on_the_number_of_angles() -> None:
    looks = [Look(0.3, 0.28, 90, 80), Look(0.3, 0.3, 90, 80)]
    assert verdict(looks, 0.5, chance=0.5)[0] == "too early to tell"
    assert verdict(looks, 0.7, chance=0.5)[0] == "learning"
