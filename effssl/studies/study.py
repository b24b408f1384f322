"""What a study consists of: arms, metrics, published numbers, and claims that the measured values support or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from effssl.studies.statistics import Estimate, Values, estimate


@dataclass(frozen=True)
class Arm:
    """One row of a table or point of a curve: an objective, and the settings that differ from its recipe."""

    name: str
    objective: str
    published: Mapping[str, float] = field(default_factory=dict)  # by metric
    flags: Mapping[str, Any] = field(default_factory=dict)  # settings, nested as in a recipe
    at: float | None = None  # position on the study's axis
    length: float = 1.0  # epochs, as a share of the study's
    recipe: str = ""  # another paper recipe than that of its objective, e.g. imagenet1k-swav-multicrop
    data: str = ""  # another data set than the study's
    efficient: bool = False  # rotation in its efficient form, in place of the published one
    curve_name: str = ""  # the curve that it belongs to; by default its objective

    @property
    def curve(self) -> str:
        """The curve of a figure that this arm is a point of."""
        return self.curve_name or self.objective


@dataclass(frozen=True)
class Metric:
    """A number of a finished run: an evaluation protocol with its settings, and which of its values is meant."""

    protocol: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""  # name of a further value of the score; its main value if empty
    needs: str = ""  # data of its own: "voc", or the "sets" for transfer
    data: str = ""  # what it is evaluated on; the run's own data if empty


TRANSFER = (
    "cifar10", "cifar100", "flowers", "caltech101", "aircraft", "dtd", "cars", "food", "pets", "sun397", "voc2007"
)  # fmt: skip
AVERAGE = "average"  # no evaluation: the mean of `linear` and the data sets for transfer, as in Table S5
METRICS: dict[str, Metric] = {
    "knn": Metric("knn"),
    "linear": Metric("linear"),
    "top5": Metric("linear", key="top5"),
    "rot f": Metric("probe-rotation"),
    "rot gf": Metric("probe-rotation", key="on_z"),
    "contr f": Metric("probe-contrastive"),
    "contr gf": Metric("probe-contrastive", key="on_z"),
    "1 % top1": Metric("semi", {"percent": 1}),
    "1 % top5": Metric("semi", {"percent": 1}, key="top5"),
    "10 % top1": Metric("semi", {"percent": 10}),
    "10 % top5": Metric("semi", {"percent": 10}, key="top5"),
    "transfer": Metric("transfer", needs="sets"),
    **{name: Metric("transfer", key=name, needs="sets") for name in TRANSFER},
    "AP": Metric("detect", {"mode": "frozen"}, needs="voc"),
    "AP50": Metric("detect", {"mode": "frozen"}, key="AP50", needs="voc"),
    "AP75": Metric("detect", {"mode": "frozen"}, key="AP75", needs="voc"),
    "AP tuned": Metric("detect", {"mode": "finetune"}, needs="voc"),
    "AP50 tuned": Metric("detect", {"mode": "finetune"}, key="AP50", needs="voc"),
    "AP75 tuned": Metric("detect", {"mode": "finetune"}, key="AP75", needs="voc"),
    "snr": Metric("snr", key="snr"),  # no evaluation: the mean of what the run logged
    "snr m/v": Metric("snr", key="snr_literal"),
}


@dataclass(frozen=True)
class Measured:
    """All measured values of a study: per arm and metric, the value of every seed."""

    values: Mapping[tuple[str, str], Values]
    arms: Sequence[Arm]
    flops: Mapping[str, float] = field(default_factory=dict)  # of training one run, by arm

    def mean(self, arm: str, metric: str) -> float | None:
        """Mean over seeds, or None where nothing was measured."""
        values = self.values.get((arm, metric), {})
        return sum(values.values()) / len(values) if values else None

    def has(self, *arms: str) -> bool:
        """Whether all these arms are part of the study at this scale."""
        return set(arms) <= {arm.name for arm in self.arms}

    def contrast(self, weights: Mapping[str, float], metric: str, plus: float = 0.0) -> Estimate | None:
        """A weighted sum of the means of arms, with its uncertainty; None if it cannot be estimated."""
        return estimate([(weight, self.values.get((arm, metric), {})) for arm, weight in weights.items()], plus)

    def resampled(self, seeds: Sequence[int]) -> Measured:
        """The same study with these seeds, some of them several times."""
        values = {
            key: {i: by_seed[seed] for i, seed in enumerate(seeds) if seed in by_seed}
            for key, by_seed in self.values.items()
        }
        return Measured(values, self.arms, self.flops)

    def curve(self, name: str, metric: str) -> list[tuple[Arm, float]]:
        """The measured points of a curve, ordered along the axis."""
        points = [(arm, self.mean(arm.name, metric)) for arm in self.arms if arm.curve == name]
        return sorted(((a, v) for a, v in points if v is not None), key=lambda point: point[0].at or 0.0)


@dataclass(frozen=True)
class Claim:
    """A statement, most of them the paper's: that some differences are all positive."""

    text: str
    differences: Callable[[Measured], Sequence[Estimate | None]]  # None: not measured, or with one seed only
    data: str = ""  # the data set that it is about; the study's if empty


@dataclass(frozen=True)
class Study:
    """One table or figure of the paper, or one of our own."""

    name: str
    title: str
    source: str  # where in the paper
    data: str  # cifar10, cifar100, imagenet100 or imagenet1k
    epochs: int
    metrics: tuple[str, ...]
    arms: tuple[Arm, ...]
    claims: tuple[Claim, ...]
    axis: str = ""  # what `at` means; a study with an axis has a figure
    rises: bool = False  # the figure shows the gain of every curve over its first point, too
    note: str = ""
