from __future__ import annotations

import math

import pytest
import torch

from effssl.training.health import Representation, TaskAccuracy, effective_rank, spread, task_accuracies, verdict


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


START = Representation(0.3, 0.28, 90, 80, 25.0)


@pytest.mark.parametrize(
    ("evaluations", "word"),
    [
        ([START], "too early to tell"),
        ([START, Representation(0.6, 0.7, 70, 40, 33.0)], "learning"),
        ([START, Representation(0.6, 0.7, 70, 40, 25.2)], "too early to tell"),
        ([START, Representation(0.6, 0.01, 70, 40, 33.0)], "collapsing"),
        ([START, Representation(0.01, 0.7, 70, 40, 33.0)], "collapsing"),
        ([START, Representation(0.3, 0.1, 70, 40, 33.0)], "collapsing"),
        ([START, Representation(0.6, 0.7, 70, 1.1, 33.0)], "collapsing"),
        ([START] * 3 + [Representation(0.3, 0.3, 20, 20, 24.0)], "collapsing"),
        ([Representation(0.3, 0.28, 90, 80), Representation(0.6, 0.7, 120, 80)], "learning"),
        ([Representation(0.3, 0.28, 90, 80), Representation(0.3, 0.3, 90, 80)], "too early to tell"),
    ],
)
def test_verdicts(evaluations: list[Representation], word: str) -> None:
    said, why = verdict(evaluations, [])
    assert said == word
    assert why


NO_LABELS = [Representation(0.3, 0.28, 90, 80), Representation(0.3, 0.3, 90, 80)]


@pytest.mark.parametrize(("name", "chance"), [("rotation", 0.25), ("jigsaw", 0.01), ("two angles", 0.5)])
def test_a_task_that_is_solved_is_a_sign_of_learning_without_labels(name: str, chance: float) -> None:
    below, above = (TaskAccuracy(name, chance + share * (1 - chance), chance) for share in (0.1, 0.4))
    assert verdict(NO_LABELS, [above])[0] == "learning"
    assert f"{name} accuracy" in verdict(NO_LABELS, [above])[1]
    assert verdict(NO_LABELS, [below])[0] == "too early to tell"
    assert verdict(NO_LABELS, [below, above])[0] == "learning"
    grown = [NO_LABELS[0], Representation(0.6, 0.7, 120, 80)]
    assert verdict(grown, [below])[0] == "too early to tell"  # more directions, but the task is at chance
    assert verdict(grown, [])[0] == "learning"


def test_tasks_are_read_from_the_journal() -> None:
    line = {"loss": 1.0, "accuracy/jigsaw": 0.3, "chance/jigsaw": 0.01}
    assert task_accuracies(line) == [TaskAccuracy("jigsaw", 0.3, 0.01)]


def test_too_few_images_are_not_called_collapsed() -> None:
    assert verdict([START, Representation(0.3, 0.3, 1.0, 1.0, 90.0, sampled=2)], [])[0] == "too early to tell"
