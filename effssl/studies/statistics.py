"""What a few seeds can decide: differences with t intervals, claims made of several, bootstrap intervals of ratios."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from statistics import mean, variance
from typing import Literal

LEVEL = 0.05  # a claim is held or refuted at 95 %
MOST_RESAMPLES = 5000  # all resamples of up to five seeds are counted; of more seeds, so many are sampled
Verdict = Literal["held", "refuted", "not decided"]
Values = Mapping[int, float]  # by seed


@dataclass(frozen=True)
class Estimate:
    """A quantity that a claim says is positive: its mean over seeds, its standard error and the degrees of freedom."""

    value: float
    error: float
    freedom: float
    can_hold: bool = True  # False where a positive value would not show the claim
    can_refute: bool = True  # False where a negative value would not contradict it

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval."""
        from scipy.stats import t

        half = float(t.ppf(1 - LEVEL / 2, self.freedom)) * self.error
        return self.value - half, self.value + half

    @property
    def p_not_positive(self) -> float:
        """One-sided p-value of so large a value if the quantity is not positive."""
        from scipy.stats import t

        if not self.error:
            return 0.5 if not self.value else float(self.value < 0)
        return float(t.sf(self.value / self.error, self.freedom))


def estimate(weighted: Sequence[tuple[float, Values]], plus: float = 0.0) -> Estimate | None:
    """A weighted sum of arms: paired by seed where all have the same seeds, else with Welch's degrees of freedom.

    None if an arm has fewer than two seeds: one seed decides nothing.

    >>> estimate([(1.0, {0: 5.0, 1: 7.0}), (-1.0, {0: 4.0, 1: 5.0})]).value
    1.5
    """
    if not weighted or any(len(values) < 2 for _, values in weighted):
        return None
    seeds = list(weighted[0][1])
    if all(values.keys() == set(seeds) for _, values in weighted):
        sums = [plus + sum(weight * values[seed] for weight, values in weighted) for seed in seeds]
        return Estimate(mean(sums), math.sqrt(variance(sums) / len(sums)), len(sums) - 1)
    squares = [(weight**2 * variance(values.values()) / len(values), len(values) - 1) for weight, values in weighted]
    total = sum(square for square, _ in squares)
    spread = sum(square**2 / freedom for square, freedom in squares)
    value = plus + sum(weight * mean(values.values()) for weight, values in weighted)
    return Estimate(value, math.sqrt(total), total**2 / spread if spread else min(f for _, f in squares))


# ---------------------------------------------------------------------------------------------------------------
# Claims


@dataclass(frozen=True)
class Decision:
    """What the estimates of one claim say about it: a direction and a two-sided p-value."""

    direction: Verdict
    p: float


def combine(estimates: Sequence[Estimate | None]) -> Decision | None:
    """A claim that all estimates are positive: held if every one is, refuted if any one is negative.

    The first needs the weakest of them to be significant (an intersection-union test), the second the strongest after
    Bonferroni's correction. None where nothing can be said: a value is missing, or has one seed.
    """
    known = [one for one in estimates if one is not None]
    if not known:
        return None
    complete = len(known) == len(estimates)
    all_positive = max((one.p_not_positive if one.can_hold else 1.0) for one in known) if complete else 1.0
    one_negative = min((1 - one.p_not_positive if one.can_refute else 1.0) for one in known) * len(known)
    p = min(1.0, 2 * min(all_positive, one_negative))
    return Decision("held" if all_positive <= one_negative else "refuted", p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the same order.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def decide(decisions: Sequence[Decision | None]) -> list[tuple[Verdict, float | None]]:
    """Verdicts on all claims of a study with Holm's p-values; claims about which nothing can be said do not count."""
    known = [decision for decision in decisions if decision is not None]
    adjusted = iter(holm([decision.p for decision in known]))
    verdicts: list[tuple[Verdict, float | None]] = []
    for decision in decisions:
        p = None if decision is None else next(adjusted)
        significant = decision is not None and p is not None and p < LEVEL
        verdicts.append((decision.direction if decision and significant else "not decided", p))
    return verdicts


# ---------------------------------------------------------------------------------------------------------------
# Ratios


def bootstrap(statistic: Callable[[Sequence[int]], float | None], seeds: Sequence[int]) -> tuple[float, float] | None:
    """The 95 % bootstrap interval over seeds of a statistic that is infinite where it is None; None with one seed."""
    if len(seeds) < 2:
        return None
    resamples: Iterable[tuple[int, ...]] = product(seeds, repeat=len(seeds))
    if len(seeds) ** len(seeds) > MOST_RESAMPLES:
        random = Random(0)
        resamples = (tuple(random.choices(seeds, k=len(seeds))) for _ in range(MOST_RESAMPLES))
    found: list[float] = []
    # Resamples in another order are the same: each is computed once and counted as often as it occurs.
    for resample, count in Counter(tuple(sorted(one)) for one in resamples).items():
        value = statistic(resample)
        found += [math.inf if value is None else value] * count
    found.sort()
    return _quantile(found, LEVEL / 2), _quantile(found, 1 - LEVEL / 2)


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]
