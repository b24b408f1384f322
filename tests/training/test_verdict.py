"""Verdicts, from figures alone: what they are called, why, and what they say to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from effssl.training.verdict import (
    STARTING,
    Moment,
    Reference,
    Representation,
    TaskAccuracy,
    advice,
    task_accuracies,
    verdict,
)

START = Representation(0.3, 0.28, 90, 80, 25.0)
BETTER = Representation(0.6, 0.7, 70, 40, 33.0)
FREE = {"pixels": 30.0, "patches": 20.0, "chance": 10.0}


@pytest.mark.parametrize(
    ("evaluations", "word"),
    [
        ([START], "too early to tell"),
        ([START, BETTER], "learning"),
        ([replace(START, knn=31.0), replace(BETTER, knn=31.2)], "no better than untrained"),
        ([START, replace(BETTER, knn=22.0)], "worse than untrained"),
        ([START, replace(BETTER, knn=28.0)], "worse than pixels"),
        ([START, replace(BETTER, knn=29.0)], "learning"),  # a point is within the margin of 1,000 images
        ([START, replace(BETTER, std_z=0.01)], "collapsing"),
        ([START, replace(BETTER, std_h=0.01)], "collapsing"),
        ([START, replace(BETTER, std_h=0.3, std_z=0.1)], "collapsing"),
        ([START, replace(BETTER, rank_z=1.1)], "collapsing"),
        ([START] * 3 + [Representation(0.3, 0.3, 20, 20, 24.0)], "collapsing"),
        ([replace(START, knn=None, agreement=25.0), replace(BETTER, knn=None, agreement=33.0)], "learning"),
        ([replace(START, knn=None, agreement=25.0), replace(BETTER, knn=None, agreement=27.0)], "worse than pixels"),
        ([START, replace(BETTER, sampled=2)], "too few images to tell"),
    ],
)
def test_verdicts(evaluations: list[Representation], word: str) -> None:
    said, why = verdict(evaluations, [], Reference(baselines=FREE))
    assert said == word
    assert why


def test_the_first_half_of_a_run_is_early() -> None:
    falling = [START, replace(BETTER, knn=20.0)]
    assert verdict(falling, [], Reference(baselines=FREE), Moment(0.4))[0] == "too early to tell"
    assert verdict(falling, [], Reference(baselines=FREE), Moment(0.5))[0] == "worse than untrained"
    assert verdict([START, replace(BETTER, knn=28.0)], [], Reference(baselines=FREE), Moment(0.4))[0] == "learning"


def test_a_collapse_needs_more_than_a_few_steps() -> None:
    collapsed = [START, replace(BETTER, std_z=0.01)]
    assert verdict(collapsed, [], moment=Moment(0.1, 19)) == (
        "too early to tell",
        "all images get nearly the same projections (spread 0.010 of 1) after 19 steps, and 20 are the fewest",
    )
    assert verdict(collapsed, [], moment=Moment(0.1, 20))[0] == "collapsing"


def test_a_collapse_says_what_to_do() -> None:
    _, why = verdict([START, replace(BETTER, std_z=0.01)], [])
    assert why.startswith("all images get nearly the same projections (spread 0.010 of 1). What to do: ")
    assert all(flag in advice(why) for flag in ("--lr", "--batch-size", "--schedule.warmup-epochs"))
    assert advice(verdict([START, BETTER], [])[1]) == ""


def test_early_is_for_what_waiting_can_change() -> None:
    """A run that ends with too few steps, or without a score, is not early."""
    collapsed = [START, replace(BETTER, std_z=0.01)]
    assert verdict(collapsed, [], moment=Moment(1.0, 19))[0] == "too short to tell"
    assert verdict(collapsed, [], moment=Moment(0.5, 5))[0] == "too short to tell"  # ten steps in all
    scoreless = [replace(one, knn=None) for one in (START, BETTER)]
    for done in (0.1, 1.0):
        assert verdict(scoreless, [], moment=Moment(done))[0] == "nothing to compare with"


def test_differences_are_told_in_words() -> None:
    _, why = verdict([START, BETTER], [], Reference(baselines=FREE))
    assert why.startswith("kNN 33.0 %, 8.0 above the untrained network, 3.0 above raw pixels;")
    _, why = verdict([START, replace(BETTER, knn=25.0)], [], Reference(baselines=FREE))
    assert why.startswith("kNN 25.0 %, equal to the untrained network, 5.0 below raw pixels;")


def test_few_images_need_a_larger_difference() -> None:
    few = [replace(START, sampled=50), replace(BETTER, knn=31.0, sampled=50)]
    assert verdict(few, [])[0] == "no better than untrained"  # 6 points, where 7 are a difference
    many = [replace(one, sampled=1000) for one in few]
    assert verdict(many, [])[0] == "learning"


def test_starting_weights_are_compared_with_too() -> None:
    worse = [START, replace(BETTER, knn=20.0)]
    said, why = verdict(worse, [], Reference(STARTING, FREE))
    assert said == "worse than the starting weights"
    assert "as they are" in why
    both = Reference(STARTING, FREE | {"untrained": 40.0})
    assert verdict([START, BETTER], [], both)[0] == "worse than untrained"


def test_what_is_better_at_once_is_named() -> None:
    said, why = verdict([START, BETTER], [], Reference(baselines={"pixels": 40.0, "patches": 57.9}))
    assert said == "worse than pixels"
    assert "7.0 below raw pixels" in why
    assert "What to do: train longer" in why
    assert "k-means patches reach 57.9 % at once (--encoder patches)" in why
    assert "patches" not in verdict([START, BETTER], [], Reference(baselines=FREE))[1]


def test_a_task_is_told_with_its_chance() -> None:
    _, why = verdict([START, BETTER], [TaskAccuracy("rotation", 0.77, 0.7)])
    assert why.endswith("rotation accuracy 77 % (chance 70 %)")


def test_tasks_are_read_from_the_journal() -> None:
    line = {"loss": 1.0, "accuracy/jigsaw": 0.3, "chance/jigsaw": 0.01}
    assert task_accuracies(line) == [TaskAccuracy("jigsaw", 0.3, 0.01)]
