"""C01 … C05, ours: what the task gains against compute, in the paper's form and in an efficient one.

The efficient form is what the CPU recipes say under `efficient`. Every point is a run with its own schedule.
"""

from __future__ import annotations

from collections.abc import Sequence

from effssl.studies.study import Arm, Claim, Study, gains_at, reaches_compute

NAMES = {"byol": "BYOL", "simclr": "SimCLR", "simsiam": "SimSiam", "swav": "SwAV"}
EPOCHS = {"cifar10": 200, "imagenet100": 100}


def against_compute(
    name: str, method: str, data: str, base: Sequence[float], paper: Sequence[float], ours: Sequence[float]
) -> Study:
    """A base method, the same with the paper's task and with ours, at some lengths in sixths of the study's epochs."""
    epochs, efficient = EPOCHS[data], f"{method}+rotation, efficient"

    def arms(label: str, objective: str, lengths: Sequence[float], kind: str = "", **flags: object) -> list[Arm]:
        return [
            Arm(f"{label} × {n:.2g}", objective, {}, flags, n * epochs, n, kind=kind)
            for n in (sixths / 6 for sixths in lengths)
        ]

    all_arms = (
        *arms(NAMES[method], method, base),
        *arms(f"{NAMES[method]}+R", f"{method}+rotation", paper),
        *arms(f"{NAMES[method]}+R, efficient", f"{method}+rotation", ours, efficient, form="efficient"),
    )
    claims: list[Claim] = []
    for measure in ("knn", "linear"):
        claims += [
            gains_at(method, efficient, measure, f"at equal compute the efficient form is better ({measure})"),
            reaches_compute(method, efficient, measure, 1 / 3, f"it gets there in a third of the compute ({measure})"),
        ]
    return Study(
        name, f"{NAMES[method]} against compute{', photographs' if data != 'cifar10' else ''}", "ours", data, epochs,
        ("knn", "linear"), all_arms, tuple(claims), axis="epochs",
        note="every point is a run with its own schedule; × 1 is the usual length",
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
