"""C01 … C05, our own: the gain of the rotation task against compute, in the paper's form and in the efficient one.

The efficient form is that of the recipes cpu-<base>-efficient. Every point is a run with its own schedule. A control
has the efficient form's views, batches and schedule without the task: what is left between the two, the task adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from effssl.studies.claims import beats, better_at_equal_compute, reaches_in_compute
from effssl.studies.study import Arm, Claim, Study

NAMES = {"byol": "BYOL", "simclr": "SimCLR", "simsiam": "SimSiam", "swav": "SwAV"}
EPOCHS = {"cifar10": 200, "imagenet100": 100}
LABELS = {"knn": "kNN", "linear": "linear"}


def arms(label: str, objective: str, epochs: int, sixths: Sequence[float], **extra: Any) -> list[Arm]:
    """One arm for each length of training, in sixths of the study's epochs."""
    shares = [n / 6 for n in sixths]
    return [Arm(f"{label} × {share:.2g}", objective, at=share * epochs, length=share, **extra) for share in shares]


def against_compute(
    name: str, method: str, data: str, base: Sequence[float], paper: Sequence[float], efficient: Sequence[float]
) -> Study:
    """A base method alone, with the task in the paper's form and in the efficient one, at several lengths each."""
    title, epochs = NAMES[method], EPOCHS[data]
    joint, curve = f"{method}+rotation", f"{method}+rotation, efficient"
    with_task = arms(f"{title}+R, efficient", joint, epochs, efficient, efficient=True, curve_name=curve)
    control = f"{method}, efficient without the task"
    without = arms(f"{title}, efficient without R", method, epochs, efficient[-1:], efficient=True, curve_name=control)
    claims: list[Claim] = []
    for metric, label in LABELS.items():
        better = f"at equal compute the efficient form of {title}+R is better than {title} ({label})"
        reaches = (
            f"the efficient form of {title}+R reaches {title}'s final accuracy in a third of its compute ({label})"
        )
        claims += [
            better_at_equal_compute(method, curve, metric, better),
            reaches_in_compute(method, curve, metric, 1 / 3, reaches),
            beats([(with_task[-1].name, without[-1].name)], metric,
                  f"with the same views, batches and schedule, predicting the rotation improves {title} ({label})"),
        ]  # fmt: skip
    return Study(
        name, f"{title} against compute{', photographs' if data != 'cifar10' else ''}", "ours", data, epochs,
        tuple(LABELS),
        (
            *arms(title, method, epochs, base),
            *arms(f"{title}+R", joint, epochs, paper),
            *with_task,
            *without,
        ),
        tuple(claims), axis="epochs", note="every point is a run with its own schedule; × 1 is the usual length",
    )  # fmt: skip


STUDIES = {
    study.name: study
    for study in (
        against_compute("C01", "byol", "cifar10", (3, 6, 12), (6,), (3, 5, 8, 24)),
        against_compute("C02", "simclr", "cifar10", (2, 6), (6,), (2, 4, 6)),
        against_compute("C03", "simsiam", "cifar10", (2, 6), (6,), (2, 3, 6)),
        against_compute("C04", "swav", "cifar10", (2, 6), (6,), (2, 4, 7)),
        against_compute("C05", "byol", "imagenet100", (6, 12), (), (6, 12, 24)),
    )
}
