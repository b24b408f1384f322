"""B01, our own: the main table with the base methods that came after those of the paper."""

from __future__ import annotations

from effssl.studies.claims import beats
from effssl.studies.study import Arm, Study

NAMES = {
    "nnclr": "NNCLR", "dino": "DINO", "barlow": "Barlow Twins", "vicreg": "VICReg", "tcr": "TCR", "sigreg": "SIGReg",
}  # fmt: skip
LABELS = {"knn": "kNN", "linear": "linear"}
ARMS = tuple(
    Arm(name + suffix, base + task) for base, name in NAMES.items() for suffix, task in (("", ""), ("+R", "+rotation"))
)
B01 = Study(
    "B01", "The main table, newer base methods", "ours", "cifar10", 200, tuple(LABELS), ARMS,
    tuple(
        beats([(f"{name}+R", name)], metric, f"rotation improves {name} ({label})")
        for name in NAMES.values() for metric, label in LABELS.items()
    ),
    note="the setting is that of E06; learning rates and the λ of rotation were not tuned for these methods",
)  # fmt: skip

STUDIES = {B01.name: B01}
