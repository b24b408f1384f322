"""A claim is held, refuted or not decided."""

from __future__ import annotations

import dataclasses

import pytest

from effssl.studies.claims import (
    beats,
    best,
    better_at_equal_compute,
    compute,
    crossing,
    crossing_interval,
    drops_less,
    gain_grows,
    gain_shrinks,
    gains_between,
    reaches_in_compute,
    reaches_in_epochs,
    rises,
    rises_like,
    same_within,
)
from effssl.studies.statistics import combine, decide
from effssl.studies.study import Arm, Claim, Measured


def measured(**values: float) -> Measured:
    """Three seeds near each value, by name; byol_20 is at 20 on the axis of the curve byol."""
    arms = [Arm(name, name.split("_")[0], at=float(name.split("_")[1]) if "_" in name else None) for name in values]
    # Noise that is not the same for all arms, else their differences had none.
    noise = [{0: 0.0, 1: 0.05, 2: -0.05}, {0: 0.05, 1: -0.05, 2: 0.0}]
    by_seed = {
        name: {seed: value + extra for seed, extra in noise[i % 2].items()}
        for i, (name, value) in enumerate(values.items())
    }
    return Measured({(name, "knn"): seeds for name, seeds in by_seed.items()}, arms)


def verdict(claim: Claim, m: Measured) -> str:
    return decide([combine(claim.differences(m))])[0][0]


def test_beats() -> None:
    claim = beats([("a", "b")], "knn", "")
    assert verdict(claim, measured(a=50.0, b=48.0)) == "held"
    assert verdict(claim, measured(a=48.0, b=50.0)) == "refuted"
    assert verdict(claim, measured(a=50.02, b=50.0)) == "not decided"
    assert verdict(claim, measured(a=50.0)) == "not decided"


def test_one_seed_decides_nothing() -> None:
    m = Measured({("a", "knn"): {0: 90.0}, ("b", "knn"): {0: 10.0}}, [Arm("a", "a"), Arm("b", "b")])
    assert verdict(beats([("a", "b")], "knn", ""), m) == "not decided"


def test_best() -> None:
    claim = best("a", ["a", "b", "c"], "knn", "")
    assert verdict(claim, measured(a=50.0, b=48.0, c=40.0)) == "held"
    assert verdict(claim, measured(a=50.0, b=48.0, c=60.0)) == "refuted"
    assert verdict(claim, measured(a=50.0, b=49.98, c=40.0)) == "not decided"


def test_rises() -> None:
    claim = rises(["a", "b", "c"], "knn", "")
    assert verdict(claim, measured(a=40.0, b=41.0, c=45.0)) == "held"
    assert verdict(claim, measured(a=40.0, b=45.0, c=41.0)) == "refuted"


def test_gains_between_limits() -> None:
    claim = gains_between([("a", "b")], "knn", (0.5, 1.5), "")
    assert verdict(claim, measured(a=51.0, b=50.0)) == "held"
    assert verdict(claim, measured(a=54.0, b=50.0)) == "refuted"
    assert verdict(claim, measured(a=50.0, b=50.0)) == "refuted"
    assert verdict(claim, measured(a=50.52, b=50.0)) == "not decided"
    assert verdict(same_within([("a", "b")], "knn", 1.0, ""), measured(a=49.9, b=50.0)) == "held"
    assert verdict(same_within([("a", "b")], "knn", 1.0, ""), measured(a=47.0, b=50.0)) == "refuted"


def test_a_gain_that_grows_or_shrinks() -> None:
    m = measured(byol_0=50.0, joint_0=51.0, joint_90=30.0, byol_90=20.0)
    assert verdict(gain_grows("byol", "joint", "knn", ""), m) == "held"
    assert verdict(gain_shrinks("byol", "joint", "knn", ""), m) == "refuted"
    same = measured(byol_0=50.0, joint_0=51.0, joint_90=21.02, byol_90=20.0)
    assert verdict(gain_grows("byol", "joint", "knn", ""), same) == "not decided"
    assert verdict(gain_shrinks("byol", "joint", "knn", ""), same) == "not decided"


def test_reaching_the_final_value_of_a_curve() -> None:
    m = measured(byol_2=30.0, byol_6=40.0, joint_1=35.0, joint_3=45.0)
    assert crossing(m, ("byol", "joint"), "knn") == pytest.approx(2 / 6, abs=0.01)
    assert verdict(reaches_in_epochs("byol", "joint", "knn", 0.4, ""), m) == "held"
    assert verdict(reaches_in_epochs("byol", "joint", "knn", 1 / 3, ""), m) == "not decided"
    assert verdict(reaches_in_epochs("byol", "joint", "knn", 0.25, ""), m) == "refuted"
    never = measured(byol_2=30.0, byol_6=60.0, joint_1=35.0, joint_3=45.0)
    assert crossing(never, ("byol", "joint"), "knn") is None


def test_what_no_run_is_short_or_long_enough_for_is_not_decided() -> None:
    m = measured(byol_2=30.0, byol_6=40.0, joint_3=45.0, joint_6=50.0)
    assert verdict(reaches_in_epochs("byol", "joint", "knn", 1 / 3, ""), m) == "not decided"  # 2 epochs may be enough
    slow = measured(byol_2=30.0, byol_6=40.0, joint_1=30.0, joint_2=35.0)
    assert verdict(reaches_in_epochs("byol", "joint", "knn", 0.9, ""), slow) == "not decided"
    late = measured(byol_2=30.0, byol_6=40.0, joint_3=35.0, joint_6=50.0)
    assert verdict(reaches_in_epochs("byol", "joint", "knn", 1 / 3, ""), late) == "refuted"


def test_a_crossing_has_an_interval_over_seeds() -> None:
    arms = [Arm(f"{curve}_{at}", curve, at=at) for curve, at in (("a", 1), ("a", 4), ("b", 1), ("b", 2), ("b", 4))]
    finals = {0: 40.0, 1: 42.0, 2: 44.0}
    values = {("b_1", "knn"): 36.0, ("b_2", "knn"): 40.0, ("b_4", "knn"): 44.0, ("a_1", "knn"): 30.0}
    m = Measured({key: dict.fromkeys(finals, v) for key, v in values.items()} | {("a_4", "knn"): finals}, arms)
    assert crossing(m, ("a", "b"), "knn") == pytest.approx(3 / 4)
    assert crossing_interval(m, ("a", "b"), "knn") == pytest.approx((2 / 4, 4 / 4))
    assert crossing_interval(m.resampled([0]), ("a", "b"), "knn") is None


def test_a_curve_that_rises_like_another() -> None:
    claim = rises_like("joint", "rotation", "byol", "knn", "")
    m = measured(byol_1=30.0, rotation_1=35.0, byol_4=40.0, rotation_4=38.0, joint_1=36.0, joint_4=39.5)
    assert verdict(claim, m) == "held"  # rises of 10, 3 and 3.5
    other = measured(byol_1=30.0, rotation_1=35.0, byol_4=40.0, rotation_4=38.0, joint_1=36.0, joint_4=45.0)
    assert verdict(claim, other) == "refuted"


def test_drops_less() -> None:
    claim = drops_less(("a", "b"), ("c", "d"), "knn", "")
    assert verdict(claim, measured(a=50.0, b=49.0, d=40.0, c=50.0)) == "held"
    assert verdict(claim, measured(a=50.0, b=40.0, d=49.0, c=50.0)) == "refuted"
    assert verdict(claim, measured(a=50.0, b=40.0, d=40.02, c=50.0)) == "not decided"


def test_claims_about_compute() -> None:
    points = measured(a_1=30.0, a_3=40.0, b_2=42.0, b_1=38.0)
    m = dataclasses.replace(points, flops={"a_1": 10.0, "a_3": 30.0, "b_1": 15.0, "b_2": 29.0})
    assert crossing(m, ("a", "b"), "knn") == pytest.approx(1.5 / 3, abs=0.01)
    assert crossing(m, ("a", "b"), "knn", compute) == pytest.approx(22 / 30, abs=0.01)
    assert verdict(reaches_in_compute("a", "b", "knn", 0.9, ""), m) == "held"
    assert verdict(reaches_in_compute("a", "b", "knn", 22 / 30, ""), m) == "not decided"
    assert verdict(reaches_in_compute("a", "b", "knn", 0.6, ""), m) == "refuted"
    claim = better_at_equal_compute("a", "b", "knn", "")
    assert verdict(claim, m) == "held"  # b_2 and a_3 cost the same within an eighth
    assert verdict(claim, dataclasses.replace(m, flops={"a_3": 30.0, "b_2": 10.0})) == "not decided"
