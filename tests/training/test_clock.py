"""Learning rate and side of the views over a run."""

from __future__ import annotations

from itertools import pairwise

import pytest

from effssl.config import Schedule
from effssl.training.clock import Clock


def test_warm_up_meets_the_cosine() -> None:
    schedule = Schedule(warmup_epochs=10, warmup_from=0.02, final=0.001)
    lrs = [Clock(0.5, schedule, 32, 10, 2000).learning_rate(step) for step in range(2000)]
    assert lrs[0] == pytest.approx(0.01 + (lrs[100] - 0.01) / 100, rel=1e-3)
    assert all(b > a for a, b in pairwise(lrs[:100]))
    assert all(b < a for a, b in pairwise(lrs[100:]))
    assert lrs[99] == pytest.approx(lrs[100], rel=1e-3)
    assert lrs[1000] == pytest.approx(0.5 * (0.001 + 0.999 / 2), rel=1e-3)
    assert lrs[-1] == pytest.approx(0.5 * 0.001, rel=0.01)


def test_no_warm_up_starts_at_the_peak() -> None:
    assert Clock(0.3, Schedule(warmup_epochs=0), 32, 10, 100).learning_rate(0) == 0.3


def test_step_decay_in_place_of_the_cosine() -> None:
    schedule = Schedule(warmup_epochs=0, milestones=(0.3, 0.6, 0.8), factor=0.2)
    rates = [Clock(0.1, schedule, 32, 1, 200).learning_rate(step) for step in (0, 59, 60, 119, 120, 159, 160, 199)]
    assert rates == pytest.approx([0.1, 0.1, 0.02, 0.02, 0.004, 0.004, 0.0008, 0.0008])


def test_views_grow_at_once() -> None:
    clock = Clock(0.1, Schedule(grow_from=0.5, grow_until=0.8, grow="at_once"), 32, 10, 100)
    assert [clock.side(step) for step in (0, 50, 79, 80, 100)] == [16, 16, 16, 32, 32]


def test_views_grow_steadily_by_four_pixels() -> None:
    clock = Clock(0.1, Schedule(grow_from=0.5, grow_until=0.8), 32, 10, 100)
    sides = [clock.side(step) for step in range(101)]
    assert sides == sorted(sides)
    assert sorted(set(sides)) == [16, 20, 24, 28, 32]
    assert sides[80:] == [32] * 21


def test_a_longer_run_moves_everything_with_it() -> None:
    clock = Clock(0.1, Schedule(warmup_epochs=0, grow_from=0.5), 32, 10, 100)
    before = [(clock.learning_rate(step), clock.side(step)) for step in (0, 30, 60)]
    clock.set_total_steps(200)
    assert [(clock.learning_rate(2 * step), clock.side(2 * step)) for step in (0, 30, 60)] == before
    assert clock.epochs == 20
