"""Claims that a study can make about its arms; differences below the margin of the seeds decide nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from effssl.studies.study import Arm, Claim, Measured, Verdict

EQUAL_COMPUTE = 1 / 8  # two arms cost the same if their FLOPs differ by less than this share


def beats(pairs: Sequence[tuple[str, str]], metric: str, text: str) -> Claim:
    """The first arm of every pair is better than the second; pairs that a scale leaves out do not count."""

    def check(m: Measured) -> Verdict:
        names = {arm.name for arm in m.arms}
        return _all([_is_better(m, a, b, metric) for a, b in pairs if {a, b} <= names])

    return Claim(text, check)


def best(arm: str, others: Sequence[str], metric: str, text: str) -> Claim:
    """One arm is better than all others."""
    return beats([(arm, other) for other in others if other != arm], metric, text)


def gain_grows(base: str, joint: str, metric: str, text: str) -> Claim:
    """The gain of the curve `joint` over the curve `base` is larger at the end of the axis than at its beginning."""
    return Claim(text, lambda m: _gain_grows(m, base, joint, metric))


def gain_shrinks(base: str, joint: str, metric: str, text: str) -> Claim:
    """The gain of the curve `joint` over the curve `base` is smaller at the end of the axis than at its beginning."""

    def check(m: Measured) -> Verdict:
        grows = _gain_grows(m, base, joint, metric)
        return None if grows is None else not grows

    return Claim(text, check)


def drops_less(joint: tuple[str, str], base: tuple[str, str], metric: str, text: str) -> Claim:
    """From the first to the second arm of a pair, the accuracy of `joint` drops less than that of `base`."""

    def check(m: Measured) -> Verdict:
        values = [m.mean(name, metric) for name in (*joint, *base)]
        if any(value is None for value in values):
            return None
        joint_first, joint_second, base_first, base_second = (value for value in values if value is not None)
        change = (base_first - base_second) - (joint_first - joint_second)
        return None if abs(change) < m.margin([*joint, *base], metric) else change > 0

    return Claim(text, check)


def better_at_equal_compute(base: str, joint: str, metric: str, text: str) -> Claim:
    """Where arms of two curves cost the same, within an eighth, those of `joint` are better."""

    def check(m: Measured) -> Verdict:
        pairs = [
            (b.name, a.name)
            for a, _ in m.curve(base, metric)
            for b, _ in m.curve(joint, metric)
            if abs(compute(m, b) - compute(m, a)) < compute(m, a) * EQUAL_COMPUTE
        ]
        return _all([_is_better(m, better, worse, metric) for better, worse in pairs])

    return Claim(text, check)


def reaches_in_epochs(base: str, joint: str, metric: str, share: float, text: str) -> Claim:
    """The curve `joint` reaches the final value of `base` within a share of its epochs."""
    return Claim(text, lambda m: _reaches(m, (base, joint), metric, share, epochs))


def reaches_in_compute(base: str, joint: str, metric: str, share: float, text: str) -> Claim:
    """The curve `joint` reaches the final value of `base` within a share of its compute."""
    return Claim(text, lambda m: _reaches(m, (base, joint), metric, share, compute))


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


def crossing(
    m: Measured, curves: tuple[str, str], metric: str, axis: Axis = epochs, above: float = 0.0
) -> float | None:
    """Where the second of two curves reaches the final value of the first, plus `above`, as a share of the first's end.

    Values between two points are interpolated linearly; None if it is not reached.
    """
    base, joint = (points(m, curve, metric, axis) for curve in curves)
    if not base or not joint or not base[-1][0]:
        return None
    end, level = base[-1][0], base[-1][1] + above
    if joint[0][1] >= level:
        return joint[0][0] / end
    for (x0, y0), (x1, y1) in pairwise(joint):
        if y0 < level <= y1:
            return (x0 + (x1 - x0) * (level - y0) / (y1 - y0)) / end
    return None


# ---------------------------------------------------------------------------------------------------------------
# Decisions


def _is_better(m: Measured, better: str, worse: str, metric: str) -> Verdict:
    a, b = m.mean(better, metric), m.mean(worse, metric)
    if a is None or b is None or abs(a - b) < m.margin([better, worse], metric):
        return None
    return a > b


def _all(verdicts: Sequence[Verdict]) -> Verdict:
    if any(verdict is False for verdict in verdicts):
        return False
    return True if verdicts and all(verdicts) else None


def _gain_grows(m: Measured, base: str, joint: str, metric: str) -> Verdict:
    common = [(x, y, v - u) for x, u in m.curve(base, metric) for y, v in m.curve(joint, metric) if x.at == y.at]
    if len(common) < 2:
        return None
    first, last = common[0], common[-1]
    change = last[2] - first[2]
    ends = [arm.name for arm in (*first[:2], *last[:2])]
    return None if abs(change) < m.margin(ends, metric) else change > 0


def _reaches(m: Measured, curves: tuple[str, str], metric: str, share: float, axis: Axis) -> Verdict:
    base, joint = (m.curve(curve, metric) for curve in curves)
    if len(base) < 2 or len(joint) < 2:
        return None
    end = axis(m, base[-1][0])
    nearest = min(joint, key=lambda point: abs(axis(m, point[0]) - share * end))[0]
    margin = m.margin([base[-1][0].name, nearest.name], metric)
    shortest = axis(m, joint[0][0]) / end
    verdicts: set[Verdict] = set()
    for above in (-margin, margin):
        position = crossing(m, curves, metric, axis, above)
        within = position is not None and position <= share * 1.001
        # Where the shortest run is already good enough, a still shorter one might be, too.
        verdicts.add(None if position == shortest and not within else within)
    return verdicts.pop() if len(verdicts) == 1 else None
