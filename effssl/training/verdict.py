"""What the evaluations of a run say about its features, in plain words: verdicts, why, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# A spread of 1 is that of directions drawn at random, 0 is one point. An untrained network gives similar images similar
# projections (0.2 to 0.3); learning spreads them out (0.7 and more), collapse draws them together.
COLLAPSED_SPREAD, COLLAPSED_SHARE, COLLAPSED_RANK = 0.05, 0.5, 1.5
MIN_IMAGES = 10  # with fewer images even a healthy network shows hardly any direction
FEW_UPDATES = 20  # before that, projections may draw together and spread again
EARLY = 0.5  # share of a run before which features may still be worse than what costs nothing
GAIN = 1.0  # points by which features must differ to be better or worse, with many images
UNTRAINED, STARTING = "the untrained network", "the starting weights"
NAMES = {"pixels": "raw pixels", "untrained": UNTRAINED, "patches": "k-means patches"}
LONGER = "train longer (--epochs, --budget)"
AGAINST_COLLAPSE = "use a smaller --lr, a larger --batch-size or a longer warm-up (--schedule.warmup-epochs)"
TO_DO = ". What to do: "  # between the reason of a verdict and its advice


@dataclass(frozen=True)
class Representation:
    """One evaluation of the representation."""

    std_h: float  # spread of normalized features, 1 = all directions alike, 0 = one point
    std_z: float
    rank_h: float  # effective number of directions in use
    rank_z: float
    knn: float | None = None  # percent on the validation split, where labels exist
    sampled: int = 1000  # images that were evaluated
    agreement: float | None = None  # percent of neighbors that stay under augmentation, where no labels exist

    @property
    def score(self) -> float | None:
        """What is compared with baselines."""
        return self.agreement if self.knn is None else self.knn

    @property
    def measure(self) -> str:
        """What the score is."""
        return "agreement of neighbors" if self.knn is None else "kNN"

    @property
    def margin(self) -> float:
        """Points that are a difference: at least the largest standard error of a share of so many images."""
        return max(GAIN, 50 / self.sampled**0.5)


@dataclass(frozen=True)
class TaskAccuracy:
    """How well a task is solved, and what guessing would reach; both between 0 and 1."""

    name: str
    accuracy: float
    chance: float

    def __str__(self) -> str:
        return f"{self.name} accuracy {100 * self.accuracy:.0f} % (chance {100 * self.chance:.0f} %)"


@dataclass(frozen=True)
class Reference:
    """What features are compared with: by which name the first evaluation goes, and baselines by the same measure."""

    first: str = UNTRAINED
    baselines: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Moment:
    """When features are judged: share of the run that is done, and steps taken."""

    done: float = 1.0
    updates: int = 1000


def task_accuracies(line: Mapping[str, Any]) -> list[TaskAccuracy]:
    """The tasks of a journal's line."""
    names = [key.removeprefix("accuracy/") for key in line if key.startswith("accuracy/")]
    return [TaskAccuracy(name, line[f"accuracy/{name}"], line[f"chance/{name}"]) for name in names]


def verdict(
    evaluations: list[Representation],
    tasks: list[TaskAccuracy],
    reference: Reference | None = None,
    moment: Moment | None = None,
) -> tuple[str, str]:
    """(learning | collapsing | worse than … | no better than … | too … to tell, why), from all evaluations.

    The first of them is of the untrained network, or of the weights that the run started from.
    """
    first, last = evaluations[0], evaluations[-1]
    reference, moment = reference or Reference(), moment or Moment()
    if last.sampled < MIN_IMAGES:
        return "too few images to tell", f"{last.sampled} are evaluated, and {MIN_IMAGES} are the fewest"
    collapse = collapsed(evaluations)
    if collapse and moment.updates < FEW_UPDATES:
        # A run that ends before so many steps does not get there by waiting.
        word = "too early to tell" if moment.updates >= FEW_UPDATES * moment.done else "too short to tell"
        return word, f"{collapse} after {moment.updates} steps, and {FEW_UPDATES} are the fewest"
    if collapse:
        return "collapsing", f"{collapse}{TO_DO}{AGAINST_COLLAPSE}"
    if len(evaluations) < 2:
        return "too early to tell", "the network is untrained"
    if last.score is None or first.score is None:
        return "nothing to compare with", f"no score was measured; spread {last.std_h:.2f}, which is no collapse"
    standing = "; ".join([compared(last, first, reference), f"spread {last.std_h:.2f}", *map(str, tasks)])
    if moment.done >= EARLY and (found := worse(last, first, reference)):
        return found[0], f"{standing}{TO_DO}{found[1]}{alternative(last.score, reference)}"
    if last.score - first.score >= last.margin:
        return "learning", standing
    if moment.done < EARLY:
        return "too early to tell", standing
    todo = f"{LONGER}, or on more images{alternative(last.score, reference)}"
    return f"no better than {short(reference.first)}", f"{standing}{TO_DO}{todo}"


def collapsed(evaluations: list[Representation]) -> str:
    """Why the representation counts as collapsed; empty if it does not."""
    first, last = evaluations[0], evaluations[-1]
    if min(last.std_h, last.std_z) < COLLAPSED_SPREAD:
        which = "features" if last.std_h < COLLAPSED_SPREAD else "projections"
        return f"all images get nearly the same {which} (spread {min(last.std_h, last.std_z):.3f} of 1)"
    if min(last.rank_h, last.rank_z) < COLLAPSED_RANK:
        return f"features vary along {min(last.rank_h, last.rank_z):.1f} directions only"
    if last.std_z < COLLAPSED_SHARE * first.std_z:
        return f"the spread of the projections fell from {first.std_z:.2f} to {last.std_z:.2f} of 1"
    if last.knn is None or first.knn is None or len(evaluations) < 4:
        return ""
    if last.knn - first.knn < GAIN and last.rank_h < first.rank_h / 2:
        fell = f"directions in use fell from {first.rank_h:.0f} to {last.rank_h:.0f}"
        return f"kNN {last.knn:.1f} %, {difference(last.knn, first.knn)} the start, {fell}"
    return ""


def compared(last: Representation, first: Representation, reference: Reference) -> str:
    """The score, and how far it is from the first one and from raw pixels."""
    assert last.score is not None
    assert first.score is not None
    text = f"{last.measure} {last.score:.1f} %, {difference(last.score, first.score)} {reference.first}"
    pixels = reference.baselines.get("pixels")
    return text if pixels is None else f"{text}, {difference(last.score, pixels)} raw pixels"


def difference(score: float, other: float) -> str:
    """How far a score is from another one, in words.

    >>> difference(33.0, 23.2), difference(23.2, 33.0), difference(33.01, 33.0)
    ('9.8 above', '9.8 below', 'equal to')
    """
    text = f"{abs(score - other):.1f}"
    return "equal to" if text == "0.0" else f"{text} {'above' if score > other else 'below'}"


def advice(why: str) -> str:
    """What a verdict says to do; empty if it says nothing.

    >>> advice(f"all images get nearly the same features{TO_DO}use a smaller --lr")
    'use a smaller --lr'
    """
    return why.partition(TO_DO)[2]


def worse(last: Representation, first: Representation, reference: Reference) -> tuple[str, str] | None:
    """A verdict on features that are worse than what costs nothing, and what to do; None if they are not."""
    assert last.score is not None
    assert first.score is not None
    least = last.score + last.margin
    slower = f"use a smaller --lr, or {LONGER}"
    if first.score > least and reference.first == STARTING:
        return f"worse than {STARTING}", "use a smaller --lr or fewer epochs, or those weights as they are"
    if first.score > least or reference.baselines.get("untrained", 0.0) > least:
        return "worse than untrained", slower
    if reference.baselines.get("pixels", 0.0) > least:
        return "worse than pixels", f"{LONGER}, or with larger views (--image-size)"
    return None


def alternative(score: float, reference: Reference) -> str:
    """What is better at once: k-means patches, if they are."""
    patches = reference.baselines.get("patches", 0.0)
    return f"; k-means patches reach {patches:.1f} % at once (--encoder patches)" if patches > score else ""


def short(first: str) -> str:
    """How a verdict names the first evaluation."""
    return "untrained" if first == UNTRAINED else first
