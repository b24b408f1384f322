"""What a study is made of: arms, measures, published numbers, and claims that can be checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

UNSURE = 1.0  # points: what one seed cannot decide, since seeds differ by about as much
ERRORS = 2  # standard errors that a difference must exceed where there are several seeds


@dataclass(frozen=True)
class Arm:
    """One row of a table or point of a curve: an objective, and what differs from its recipe."""

    name: str
    objective: str
    published: Mapping[str, float] = field(default_factory=dict)  # by measure
    flags: Mapping[str, Any] = field(default_factory=dict)  # settings, nested as in a recipe
    at: float | None = None  # its place on the study's axis
    length: float = 1.0  # epochs, as a share of the study's
    recipe: str = ""  # another paper recipe than that of its objective, e.g. imagenet1k-swav-multicrop
    data: str = ""  # another data set than the study's
    kind: str = ""  # curve it belongs to; its objective unless said otherwise

    @property
    def curve(self) -> str:
        """The curve of a figure that this arm is a point of."""
        return self.kind or self.objective


@dataclass(frozen=True)
class Measure:
    """A figure of a finished run: a protocol with its settings, and where in its score the figure stands."""

    protocol: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    also: str = ""  # a further figure of the score; the value itself if empty
    reads: str = ""  # data of its own: voc, or the transfer sets


TRANSFER = (
    "cifar10", "cifar100", "flowers", "caltech101", "aircraft", "dtd", "cars", "food", "pets", "sun397", "voc2007"
)  # fmt: skip
MEASURES: dict[str, Measure] = {
    "knn": Measure("knn"),
    "linear": Measure("linear"),
    "top5": Measure("linear", also="top5"),
    "rot f": Measure("probe-rotation"),
    "rot gf": Measure("probe-rotation", also="on_z"),
    "contr f": Measure("probe-contrastive"),
    "contr gf": Measure("probe-contrastive", also="on_z"),
    "1 % top1": Measure("semi", {"percent": 1}),
    "1 % top5": Measure("semi", {"percent": 1}, also="top5"),
    "10 % top1": Measure("semi", {"percent": 10}),
    "10 % top5": Measure("semi", {"percent": 10}, also="top5"),
    "transfer": Measure("transfer", reads="sets"),
    **{name: Measure("transfer", also=name, reads="sets") for name in TRANSFER},
    "AP": Measure("detect", {"mode": "frozen"}, reads="voc"),
    "AP50": Measure("detect", {"mode": "frozen"}, also="AP50", reads="voc"),
    "AP75": Measure("detect", {"mode": "frozen"}, also="AP75", reads="voc"),
    "AP tuned": Measure("detect", {"mode": "finetune"}, reads="voc"),
    "AP50 tuned": Measure("detect", {"mode": "finetune"}, also="AP50", reads="voc"),
    "AP75 tuned": Measure("detect", {"mode": "finetune"}, also="AP75", reads="voc"),
    "snr": Measure("snr"),  # read from the run's own log
}


@dataclass(frozen=True)
class Figures:
    """What was measured: values per arm and measure, one per seed."""

    values: Mapping[tuple[str, str], Sequence[float]]
    arms: Sequence[Arm]
    flops: Mapping[str, float] = field(default_factory=dict)  # of training one run, by arm

    def mean(self, arm: str, measure: str) -> float | None:
        """Mean over seeds, or None where nothing was measured."""
        values = self.values.get((arm, measure), ())
        return sum(values) / len(values) if values else None

    def doubt(self, arms: Sequence[str], measure: str) -> float:
        """How large a difference between arms must be to mean something: two standard errors, added in squares.

        Few seeds may agree by chance, so those of one arm count as at least a third of what one seed is unsure of.
        """
        total = 0.0
        for arm in arms:
            values = self.values.get((arm, measure), ())
            if len(values) < 2:
                total += (UNSURE / ERRORS) ** 2 / 2
                continue
            mean = sum(values) / len(values)
            error = sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values)
            total += max(error, (UNSURE / ERRORS / 3) ** 2 / 2)
        return ERRORS * total**0.5

    def curve(self, kind: str, measure: str) -> list[tuple[Arm, float]]:
        """The measured points of a curve, in the order of the axis."""
        some = [(arm, self.mean(arm.name, measure)) for arm in self.arms if arm.curve == kind]
        return sorted(((a, v) for a, v in some if v is not None), key=lambda pair: pair[0].at or 0.0)


Verdict = bool | None  # held, not held, not decided


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper that the figures can bear out or not."""

    text: str
    check: Callable[[Figures], Verdict]


@dataclass(frozen=True)
class Study:
    """One table or figure of the paper."""

    name: str
    title: str
    source: str  # where in the paper
    data: str  # cifar10, cifar100, imagenet100 or imagenet1k
    epochs: int
    measures: tuple[str, ...]
    arms: tuple[Arm, ...]
    claims: tuple[Claim, ...]
    axis: str = ""  # what `at` means; studies with an axis are drawn
    note: str = ""


# ---------------------------------------------------------------------------------------------------------------
# Claims


def _difference(f: Figures, better: str, worse: str, measure: str) -> Verdict:
    a, b = f.mean(better, measure), f.mean(worse, measure)
    if a is None or b is None or abs(a - b) < f.doubt([better, worse], measure):
        return None
    return a > b


def _all(verdicts: Sequence[Verdict]) -> Verdict:
    if any(v is False for v in verdicts):
        return False
    return True if verdicts and all(verdicts) else None


def beats(pairs: Sequence[tuple[str, str]], measure: str, text: str) -> Claim:
    """The first arm of every pair is better than the second; pairs that a scale leaves out do not count."""

    def check(f: Figures) -> Verdict:
        names = {arm.name for arm in f.arms}
        return _all([_difference(f, a, b, measure) for a, b in pairs if {a, b} <= names])

    return Claim(text, check)


def best(arm: str, others: Sequence[str], measure: str, text: str) -> Claim:
    """An arm is ahead of all others."""
    return beats([(arm, other) for other in others if other != arm], measure, text)


def gain_moves(base: str, more: str, measure: str, up: bool, text: str) -> Claim:
    """The gain of one curve over another is larger (or smaller) at the end of the axis than at its beginning."""

    def check(f: Figures) -> Verdict:
        a, b = f.curve(base, measure), f.curve(more, measure)
        common = [(x, y, u, v) for x, u in a for y, v in b if x.at == y.at]
        if len(common) < 2:
            return None
        gains = [v - u for _, _, u, v in common]
        ends = [arm.name for x, y, _, _ in (common[0], common[-1]) for arm in (x, y)]
        change = gains[-1] - gains[0]
        return None if abs(change) < f.doubt(ends, measure) else (change > 0) == up

    return Claim(text, check)


def falls_less(with_task: tuple[str, str], without: tuple[str, str], measure: str, text: str) -> Claim:
    """From its first to its second arm, one pair loses less than the other."""

    def check(f: Figures) -> Verdict:
        values = [f.mean(name, measure) for name in (*with_task, *without)]
        if any(v is None for v in values):
            return None
        a, b, c, d = (v for v in values if v is not None)
        change = (c - d) - (a - b)
        return None if abs(change) < f.doubt([*with_task, *without], measure) else change > 0

    return Claim(text, check)


Axis = Callable[[Figures, Arm], float]


def epochs(f: Figures, arm: Arm) -> float:
    """An arm's place on the study's axis."""
    return arm.at or 0.0


def compute(f: Figures, arm: Arm) -> float:
    """An arm's counted cost."""
    return f.flops.get(arm.name, 0.0)


def points(f: Figures, kind: str, measure: str, axis: Axis) -> list[tuple[float, float]]:
    """A curve as places and values."""
    return [(axis(f, arm), value) for arm, value in f.curve(kind, measure)]


def crossing(f: Figures, base: str, more: str, measure: str, axis: Axis = epochs, above: float = 0.0) -> float | None:
    """The share of the axis' end, between points by straight lines, at which `more` reaches the end of `base`.

    `above` raises the value that is to be reached.
    """
    a, b = points(f, base, measure, axis), points(f, more, measure, axis)
    if not a or not b or not a[-1][0]:
        return None
    end, level = a[-1][0], a[-1][1] + above
    if b[0][1] >= level:
        return b[0][0] / end
    for (x, u), (y, v) in pairwise(b):
        if u < level <= v:
            return (x + (y - x) * (level - u) / (v - u)) / end
    return None


def gains_at(base: str, more: str, measure: str, text: str) -> Claim:
    """Where two arms cost the same within an eighth, the one of the second curve is better."""

    def check(f: Figures) -> Verdict:
        pairs = [
            (b.name, a.name)
            for a, _ in f.curve(base, measure)
            for b, _ in f.curve(more, measure)
            if abs(compute(f, b) - compute(f, a)) < compute(f, a) / 8
        ]
        return _all([_difference(f, better, worse, measure) for better, worse in pairs])

    return Claim(text, check)


def reaches_compute(base: str, more: str, measure: str, share: float, text: str) -> Claim:
    """One curve reaches the other's last value within a share of its compute."""
    return _reaches(base, more, measure, share, text, compute)


def reaches(base: str, more: str, measure: str, share: float, text: str) -> Claim:
    """One curve reaches the other's last value within a share of its axis."""
    return _reaches(base, more, measure, share, text, epochs)


def _reaches(base: str, more: str, measure: str, share: float, text: str, axis: Axis) -> Claim:
    def check(f: Figures) -> Verdict:
        a, b = f.curve(base, measure), f.curve(more, measure)
        if len(a) < 2 or len(b) < 2:
            return None
        near = min(b, key=lambda point: abs(axis(f, point[0]) - share * axis(f, a[-1][0])))[0]
        doubt = f.doubt([a[-1][0].name, near.name], measure)
        first = axis(f, b[0][0]) / axis(f, a[-1][0])
        held: set[Verdict] = set()
        for above in (-doubt, doubt):
            place = crossing(f, base, more, measure, axis, above)
            within = place is not None and place <= share * 1.001
            held.add(None if place == first and not within else within)  # a shorter run might have got there too
        return held.pop() if len(held) == 1 else None

    return Claim(text, check)
