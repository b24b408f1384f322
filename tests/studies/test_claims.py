"""A claim is held, not held or not decided."""

from __future__ import annotations

import dataclasses

import pytest

from effssl.studies.claims import (
    beats,
    best,
    better_at_equal_compute,
    compute,
    crossing,
    drops_less,
    gain_grows,
    gain_shrinks,
    reaches_in_compute,
    reaches_in_epochs,
)
from effssl.studies.study import Arm, Measured


def measured(**values: list[float]) -> Measured:
    """Values of arms by name; byol_20 is at 20 on the axis of the curve byol."""
    arms = [Arm(name, name.split("_")[0], at=float(name.split("_")[1]) if "_" in name else None) for name in values]
    return Measured({(name, "knn"): v for name, v in values.items()}, arms)


def test_beats() -> None:
    claim = beats([("a", "b")], "knn", "")
    assert claim.check(measured(a=[50.0], b=[48.0])) is True
    assert claim.check(measured(a=[48.0], b=[50.0])) is False
    assert claim.check(measured(a=[50.5], b=[50.0])) is None  # half a point is within the margin of one seed
    assert claim.check(measured(a=[50.5, 50.6, 50.4], b=[50.0, 50.1, 49.9])) is True
    assert claim.check(measured(a=[50.2, 50.3, 50.1], b=[50.0, 50.1, 49.9])) is None
    assert claim.check(measured(a=[52.0, 48.0, 53.0], b=[50.0, 50.1, 49.9])) is None
    assert claim.check(measured(a=[50.0])) is None


def test_best() -> None:
    claim = best("a", ["a", "b", "c"], "knn", "")
    assert claim.check(measured(a=[50.0], b=[48.0], c=[40.0])) is True
    assert claim.check(measured(a=[50.0], b=[48.0], c=[60.0])) is False
    assert claim.check(measured(a=[50.0], b=[49.8], c=[40.0])) is None


def test_a_gain_that_grows_or_shrinks() -> None:
    m = measured(byol_0=[50.0], byol_90=[20.0], joint_0=[51.0], joint_90=[30.0])
    assert gain_grows("byol", "joint", "knn", "").check(m) is True
    assert gain_shrinks("byol", "joint", "knn", "").check(m) is False
    same = measured(byol_0=[50.0], byol_90=[20.0], joint_0=[51.0], joint_90=[21.5])
    assert gain_grows("byol", "joint", "knn", "").check(same) is None
    assert gain_shrinks("byol", "joint", "knn", "").check(same) is None


def test_reaching_the_final_value_of_a_curve() -> None:
    m = measured(byol_2=[30.0], byol_6=[40.0], joint_1=[35.0], joint_3=[45.0])
    assert crossing(m, ("byol", "joint"), "knn") == pytest.approx(2 / 6)
    assert reaches_in_epochs("byol", "joint", "knn", 0.4, "").check(m) is True
    assert reaches_in_epochs("byol", "joint", "knn", 1 / 3, "").check(m) is None  # within the margin of one seed
    assert reaches_in_epochs("byol", "joint", "knn", 0.25, "").check(m) is False
    never = measured(byol_2=[30.0], byol_6=[60.0], joint_1=[35.0], joint_3=[45.0])
    assert crossing(never, ("byol", "joint"), "knn") is None


def test_drops_less() -> None:
    claim = drops_less(("a", "b"), ("c", "d"), "knn", "")
    assert claim.check(measured(a=[50.0], b=[49.0], c=[50.0], d=[40.0])) is True
    assert claim.check(measured(a=[50.0], b=[40.0], c=[50.0], d=[49.0])) is False
    assert claim.check(measured(a=[50.0], b=[40.0], c=[50.0], d=[40.5])) is None


def test_claims_about_compute() -> None:
    arms = [Arm("a1", "a", at=1), Arm("a2", "a", at=3), Arm("b1", "b", at=1), Arm("b2", "b", at=2)]
    values = {("a1", "knn"): [30.0], ("a2", "knn"): [40.0], ("b1", "knn"): [38.0], ("b2", "knn"): [42.0]}
    m = Measured(values, arms, {"a1": 10.0, "a2": 30.0, "b1": 15.0, "b2": 29.0})
    assert crossing(m, ("a", "b"), "knn") == pytest.approx(1.5 / 3)
    assert crossing(m, ("a", "b"), "knn", compute) == pytest.approx(22 / 30)
    assert reaches_in_compute("a", "b", "knn", 0.9, "").check(m) is True
    assert reaches_in_compute("a", "b", "knn", 0.73, "").check(m) is None
    assert reaches_in_compute("a", "b", "knn", 0.6, "").check(m) is False
    claim = better_at_equal_compute("a", "b", "knn", "")
    assert claim.check(m) is True  # b2 and a2 cost the same within an eighth
    assert claim.check(dataclasses.replace(m, flops={"a2": 30.0, "b2": 10.0})) is None
