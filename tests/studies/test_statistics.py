"""What seeds decide: t intervals as scipy computes them, claims of several differences, Holm, bootstrap."""

from __future__ import annotations

import pytest
from scipy import stats

from effssl.studies.statistics import Decision, bootstrap, combine, decide, estimate, holm

A = {0: 50.0, 1: 52.0, 2: 51.5}
B = {0: 49.0, 1: 50.5, 2: 50.0}


def test_the_same_seeds_are_paired() -> None:
    found = estimate([(1.0, A), (-1.0, B)])
    expected = stats.ttest_rel(list(A.values()), list(B.values()))
    assert found is not None
    assert 2 * found.p_not_positive == pytest.approx(expected.pvalue)
    assert found.interval == pytest.approx(tuple(expected.confidence_interval(0.95)))


def test_other_seeds_are_compared_by_welch() -> None:
    other = {5: 49.0, 6: 50.5, 7: 50.0, 8: 47.0}
    found = estimate([(1.0, A), (-1.0, other)])
    expected = stats.ttest_ind(list(A.values()), list(other.values()), equal_var=False)
    assert found is not None
    assert 2 * found.p_not_positive == pytest.approx(expected.pvalue)
    assert found.interval == pytest.approx(tuple(expected.confidence_interval(0.95)))


def test_one_seed_estimates_nothing() -> None:
    assert estimate([(1.0, {0: 90.0}), (-1.0, {0: 10.0})]) is None
    assert estimate([(1.0, A), (-1.0, {})]) is None
    assert combine([None]) is None
    assert combine([]) is None


def test_a_claim_of_several_differences() -> None:
    clear, weak = estimate([(1.0, {0: 5.0, 1: 5.1, 2: 4.9})]), estimate([(1.0, {0: -1.0, 1: 1.0, 2: 1.5})])
    against = estimate([(-1.0, {0: 5.0, 1: 5.1, 2: 4.9})])
    assert clear is not None
    held, open_, refuted = combine([clear, clear]), combine([clear, weak]), combine([clear, weak, against])
    assert held is not None
    assert open_ is not None
    assert refuted is not None
    assert (held.direction, held.p) == ("held", pytest.approx(2 * clear.p_not_positive))
    assert open_.p > 0.05
    # That one of three is negative is corrected for having looked at three.
    assert (refuted.direction, refuted.p) == ("refuted", pytest.approx(3 * 2 * clear.p_not_positive, rel=1e-6))
    missing = combine([clear, None])
    assert missing is None or missing.p > 0.05  # what was not measured cannot be part of what held


def test_holm_over_the_claims_of_a_study() -> None:
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    verdicts = decide([Decision("held", 0.03), None, Decision("refuted", 0.001), Decision("held", 0.04)])
    assert [verdict for verdict, _ in verdicts] == ["not decided", "not decided", "refuted", "not decided"]
    assert [verdict for verdict, _ in decide([Decision("held", 0.03), None])] == ["held", "not decided"]


def test_bootstrap_over_seeds() -> None:
    values = {0: 0.2, 1: 0.3, 2: 0.6}
    interval = bootstrap(lambda seeds: sum(values[seed] for seed in seeds) / len(seeds), [0, 1, 2])
    assert interval == pytest.approx((0.2, 0.6))  # one of 27 resamples has the same seed three times: more than 2.5 %
    many = {seed: float(seed) for seed in range(8)}
    low, high = bootstrap(lambda seeds: sum(many[seed] for seed in seeds) / len(seeds), list(many)) or (0, 0)
    assert 1.5 < low < 2.5
    assert 4.5 < high < 5.5
    assert bootstrap(lambda seeds: 1.0, [0]) is None
    assert bootstrap(lambda seeds: None if 2 in seeds else 0.5, [0, 1, 2]) == (0.5, float("inf"))
