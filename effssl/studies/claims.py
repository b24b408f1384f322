"""Claims that a study can make about its arms: each is a list of differences that it says are positive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from effssl.studies.statistics import Estimate, bootstrap, estimate
from effssl.studies.study import Arm, Claim, Measured

EQUAL_COMPUTE = 1 / 8  # two arms cost the same if their FLOPs differ by less than this share
ROUNDING = 1.001  # of shares of epochs, so that 2 of 6 are a third
Pairs = Sequence[tuple[str, str]]


def beats(pairs: Pairs, metric: str, text: str, data: str = "") -> Claim:
    """The first arm of every pair is better than the second; pairs that a scale leaves out do not count."""
    return Claim(text, lambda m: [_gain(m, a, b, metric) for a, b in pairs if m.has(a, b)], data)


def best(arm: str, others: Sequence[str], metric: str, text: str, data: str = "") -> Claim:
    """One arm is better than all others."""
    return beats([(arm, other) for other in others if other != arm], metric, text, data)


def rises(arms: Sequence[str], metric: str, text: str) -> Claim:
    """Each arm is better than the one before it."""
    return beats([(later, earlier) for earlier, later in pairwise(arms)], metric, text)


def gains_between(pairs: Pairs, metric: str, limits: tuple[float, float], text: str) -> Claim:
    """The first arm of every pair is better than the second by an amount between two limits, in points."""

    def differences(m: Measured) -> list[Estimate | None]:
        found = [pair for pair in pairs if m.has(*pair)]
        above = [m.contrast({a: 1.0, b: -1.0}, metric, -limits[0]) for a, b in found]
        below = [m.contrast({a: -1.0, b: 1.0}, metric, limits[1]) for a, b in found]
        return above + below

    return Claim(text, differences)


def same_within(pairs: Pairs, metric: str, points: float, text: str) -> Claim:
    """The arms of every pair differ by less than so many points."""
    return gains_between(pairs, metric, (-points, points), text)


def gain_grows(base: str, joint: str, metric: str, text: str) -> Claim:
    """The gain of the curve `joint` over the curve `base` is larger at the end of the axis than at its beginning."""
    return Claim(text, lambda m: [_gain_growth(m, base, joint, metric, 1.0)])


def gain_shrinks(base: str, joint: str, metric: str, text: str) -> Claim:
    """The gain of the curve `joint` over the curve `base` is smaller at the end of the axis than at its beginning."""
    return Claim(text, lambda m: [_gain_growth(m, base, joint, metric, -1.0)])


def drops_less(joint: tuple[str, str], base: tuple[str, str], metric: str, text: str) -> Claim:
    """From the first to the second arm of a pair, the accuracy of `joint` drops less than that of `base`."""
    weights = {base[0]: 1.0, base[1]: -1.0, joint[0]: -1.0, joint[1]: 1.0}
    return Claim(text, lambda m: [m.contrast(weights, metric)])


def better_at_equal_compute(base: str, joint: str, metric: str, text: str) -> Claim:
    """Where arms of two curves cost the same, within an eighth, those of `joint` are better."""

    def differences(m: Measured) -> list[Estimate | None]:
        return [
            _gain(m, b.name, a.name, metric)
            for a, _ in m.curve(base, metric)
            for b, _ in m.curve(joint, metric)
            if abs(compute(m, b) - compute(m, a)) < compute(m, a) * EQUAL_COMPUTE
        ]

    return Claim(text, differences)


def reaches_in_epochs(base: str, joint: str, metric: str, share: float, text: str) -> Claim:
    """The curve `joint` reaches the final value of `base` within a share of its epochs."""
    return Claim(text, lambda m: [_lead_at(m, (base, joint), metric, share, epochs)])


def reaches_in_compute(base: str, joint: str, metric: str, share: float, text: str) -> Claim:
    """The curve `joint` reaches the final value of `base` within a share of its compute."""
    return Claim(text, lambda m: [_lead_at(m, (base, joint), metric, share, compute)])


def rises_like(curve: str, like: str, unlike: str, metric: str, text: str) -> Claim:
    """After its first point a curve rises more like a second one than like a third: Fig. 4b of the paper."""
    return Claim(text, lambda m: [_likeness(m, (curve, like, unlike), metric)])


# ---------------------------------------------------------------------------------------------------------------
# Curves

Axis = Callable[[Measured, Arm], float]


def epochs(m: Measured, arm: Arm) -> float:
    """An arm's position on the study's axis."""
    return arm.at or 0.0


def compute(m: Measured, arm: Arm) -> float:
    """An arm's counted FLOPs."""
    return m.flops.get(arm.name, 0.0)


def points(m: Measured, curve: str, metric: str, axis: Axis) -> list[tuple[float, float]]:
    """A curve as positions and values."""
    return [(axis(m, arm), value) for arm, value in m.curve(curve, metric)]


def crossing(m: Measured, curves: tuple[str, str], metric: str, axis: Axis = epochs) -> float | None:
    """Where the second of two curves reaches the final value of the first, as a share of the first's end.

    Values between two points are interpolated linearly; None if it is not reached.
    """
    base, joint = (points(m, curve, metric, axis) for curve in curves)
    if not base or not joint or not base[-1][0]:
        return None
    end, level = base[-1]
    if joint[0][1] >= level:
        return joint[0][0] / end
    for (x0, y0), (x1, y1) in pairwise(joint):
        if y0 < level <= y1:
            return (x0 + (x1 - x0) * (level - y0) / (y1 - y0)) / end
    return None


def crossing_interval(
    m: Measured, curves: tuple[str, str], metric: str, axis: Axis = epochs
) -> tuple[float, float] | None:
    """The 95 % bootstrap interval over seeds of a crossing, infinite where it is not reached; None with one seed."""
    seeds = common_seeds(m, curves, metric)
    return bootstrap(lambda chosen: crossing(m.resampled(chosen), curves, metric, axis), seeds)


def common_seeds(m: Measured, curves: Sequence[str], metric: str) -> list[int]:
    """The seeds that every measured point of some curves has."""
    found = [m.values[arm.name, metric] for curve in curves for arm, _ in m.curve(curve, metric)]
    return sorted(set.intersection(*(set(values) for values in found))) if found else []


def rise(m: Measured, curve: str, metric: str) -> dict[float, float]:
    """How much better each point of a curve is than its first one, by position."""
    found = m.curve(curve, metric)
    return {epochs(m, arm): value - found[0][1] for arm, value in found}


# ---------------------------------------------------------------------------------------------------------------
# Differences


def _gain(m: Measured, better: str, worse: str, metric: str) -> Estimate | None:
    return m.contrast({better: 1.0, worse: -1.0}, metric)


def _gain_growth(m: Measured, base: str, joint: str, metric: str, sign: float) -> Estimate | None:
    """The gain at the end of the axis minus that at its beginning, times a sign."""
    common = [(a, b) for a, _ in m.curve(base, metric) for b, _ in m.curve(joint, metric) if a.at == b.at]
    if len(common) < 2:
        return None
    (base_first, joint_first), (base_last, joint_last) = common[0], common[-1]
    weights = {joint_last.name: sign, base_last.name: -sign, joint_first.name: -sign, base_first.name: sign}
    return m.contrast(weights, metric)


def _lead_at(m: Measured, curves: tuple[str, str], metric: str, share: float, axis: Axis) -> Estimate | None:
    """The value of `joint` at a share of the axis, interpolated between two points, minus the final value of `base`."""
    base, joint = ([arm for arm, _ in m.curve(curve, metric)] for curve in curves)
    if len(base) < 2 or len(joint) < 2:
        return None
    position = share * ROUNDING * axis(m, base[-1])
    weights: Mapping[str, float]
    # Beyond the measured points only one answer is possible: what is reached earlier is reached, and what is not
    # reached later is not.
    too_early, too_late = position < axis(m, joint[0]), position > axis(m, joint[-1])
    if too_early or too_late:
        weights = {joint[0 if too_early else -1].name: 1.0}
    else:
        left, right = next(pair for pair in pairwise(joint) if position <= axis(m, pair[1]))
        inner = (position - axis(m, left)) / (axis(m, right) - axis(m, left))
        weights = {left.name: 1 - inner, right.name: inner}
    found = m.contrast({**weights, base[-1].name: -1.0}, metric)
    return found and Estimate(found.value, found.error, found.freedom, not too_early, not too_late)


def _likeness(m: Measured, curves: tuple[str, str, str], metric: str) -> Estimate | None:
    """How much nearer the rise of a curve is to that of a second one than to that of a third, mean over its points."""
    by_seed = {}
    for seed in common_seeds(m, curves, metric):
        own, like, unlike = (rise(m.resampled([seed]), curve, metric) for curve in curves)
        later = [at for at in list(own)[1:] if at in like and at in unlike]
        if later:
            nearer = [abs(own[at] - unlike[at]) - abs(own[at] - like[at]) for at in later]
            by_seed[seed] = sum(nearer) / len(nearer)
    return estimate([(1.0, by_seed)])
