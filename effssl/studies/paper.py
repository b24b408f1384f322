"""E01 … E20: the tables and figures of the paper. Published numbers are the paper's, single runs, in percent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from effssl.config import nest
from effssl.studies.study import Arm, Claim, Study, beats, best, falls_less, gain_moves, reaches

NAMES = {"byol": "BYOL", "simclr": "SimCLR", "simsiam": "SimSiam", "swav": "SwAV", "supcon": "SupCon"}
METHODS = ("simclr", "byol", "swav", "simsiam")
PERCENT = 100


def pair(base: str, measures: Sequence[str], plain: Sequence[float], more: Sequence[float], **extra: Any) -> list[Arm]:
    """A base method and the same with the rotation task."""
    return [
        Arm(NAMES[base], base, dict(zip(measures, plain, strict=False)), **extra),
        Arm(f"{NAMES[base]}+R", f"{base}+rotation", dict(zip(measures, more, strict=False)), **extra),
    ]


def curve(
    name: str, objective: str, path: str, values: Sequence[float], published: Mapping[float, Mapping[str, float]],
) -> list[Arm]:  # fmt: skip
    """Arms along an axis: one flag takes a row of values; the axis is in percent."""
    arms = []
    for value in values:
        flags = nest({path: value})
        at = round(PERCENT * value, 6)
        arms.append(Arm(f"{name}, {at:g} %", objective, published.get(value, {}), flags, at=at))
    return arms


def lengths(
    name: str, objective: str, data_epochs: Sequence[int], longest: int, published: Mapping[int, float]
) -> list[Arm]:
    """Runs of different lengths, each with its own schedule; the axis is in the paper's epochs."""
    return [
        Arm(
            f"{name}, {n} epochs",
            objective,
            {"linear": published[n]} if n in published else {},
            at=n,
            length=n / longest,
        )
        for n in data_epochs
    ]


def every(arms: Sequence[Arm], base: str, more: str) -> list[tuple[str, str]]:
    """Pairs of arms at the same place of the axis, the one with the task first."""
    return [(b.name, a.name) for a in arms for b in arms if a.curve == base and b.curve == more and a.at == b.at]


# ---------------------------------------------------------------------------------------------------------------
# Noise in the objective

LABELS = (0.0, 0.3, 0.5, 1.0)
E01_ARMS = (
    *curve("SimCLR", "simclr", "simclr.known_labels", LABELS,
           {0.0: {"linear": 88.77}, 0.3: {"linear": 92.26}, 0.5: {"linear": 92.93}, 1.0: {"linear": 93.27}}),
    *curve("SimCLR+R", "simclr+rotation", "simclr.known_labels", LABELS,
           {0.0: {"linear": 90.91}, 0.3: {"linear": 93.94}, 0.5: {"linear": 94.02}, 1.0: {"linear": 94.15}}),
)  # fmt: skip
E01 = Study(
    "E01", "Fewer false negatives", "Table 1", "cifar10", 200, ("linear",), E01_ARMS,
    (
        beats(every(E01_ARMS, "simclr", "simclr+rotation"), "linear", "rotation helps at every share of known labels"),
        beats([("SimCLR, 100 %", "SimCLR, 0 %")], "linear", "less noise is better: all labels known beats none"),
        gain_moves("simclr", "simclr+rotation", "linear", False, "rotation helps most where the noise is greatest"),
    ),
    axis="labels known, %",
)  # fmt: skip

CROPS = (0.0, 0.25, 0.5, 1.0)
E02_ARMS = (
    *curve("BYOL", "byol", "augment.saliency_share", CROPS,
           {0.0: {"linear": 63.64}, 0.25: {"linear": 64.50}, 0.5: {"linear": 66.30}, 1.0: {"linear": 66.72}}),
    *curve("BYOL+R", "byol+rotation", "augment.saliency_share", CROPS,
           {0.0: {"linear": 68.62}, 0.25: {"linear": 68.30}, 0.5: {"linear": 68.90}, 1.0: {"linear": 70.26}}),
)  # fmt: skip
E02 = Study(
    "E02", "Fewer false positives: crops chosen by saliency", "Table 2", "imagenet100", 50, ("linear",), E02_ARMS,
    (
        beats([("BYOL, 100 %", "BYOL, 0 %")], "linear", "better crops help BYOL"),
        beats(every(E02_ARMS, "byol", "byol+rotation"), "linear", "rotation helps at every share of good crops"),
        gain_moves("byol", "byol+rotation", "linear", False, "rotation helps less where crops are good"),
    ),
    axis="good crops, %", note="needs saliency maps: --maps FILE (effssl saliency makes them)",
)  # fmt: skip

NOISE = tuple(n / 10 for n in range(10))
E03_ARMS = (
    *curve("SupCon", "supcon", "supcon.label_noise", NOISE, {}),
    *curve("SupCon+R", "supcon+rotation", "supcon.label_noise", NOISE, {}),
    *(
        Arm(f"SupCon+noisy R, {100 * n:g} %", "supcon+rotation", {},
            {"supcon": {"label_noise": n}, "rotation": {"noise": n}},
            at=100 * n, kind="supcon+noisy rotation")
        for n in NOISE
    ),
)  # fmt: skip
E03 = Study(
    "E03", "Label noise in supervised contrast", "Fig. 3a", "cifar10", 200, ("linear",), E03_ARMS,
    (
        beats(every(E03_ARMS, "supcon", "supcon+rotation"), "linear", "rotation helps at every level of label noise"),
        gain_moves("supcon", "supcon+rotation", "linear", True, "the gain grows with the noise"),
        beats([(f"SupCon+R, {100 * n:g} %", f"SupCon+noisy R, {100 * n:g} %") for n in NOISE if n], "linear",
              "angles that are as noisy as the labels help less"),
    ),
    axis="label noise, %", note="the paper gives the curves as a picture only; at no noise the gain is 0.68 points",
)  # fmt: skip

ROTATION_NOISE = tuple(n / 10 for n in range(9))
PROBES = ("linear", "rot f", "rot gf", "contr f", "contr gf")
E04_PUBLISHED = {
    0.3: (89.93, 91.88, 91.78, 73.42, 64.25), 0.5: (90.28, 89.95, 85.82, 78.18, 77.39),
    0.7: (89.75, 80.49, 67.26, 78.55, 77.31), 0.8: (89.18, 77.43, 63.53, 77.26, 76.92),
    0.0: (91.89, 93.73, 93.54, 72.85, 67.81),
}  # fmt: skip
E04_ARMS = (
    Arm("BYOL", "byol", dict(zip(PROBES, (89.30, 73.40, 58.32, 78.53, 78.82), strict=True))),
    *curve("BYOL+R", "byol+rotation", "rotation.noise", ROTATION_NOISE,
           {n: dict(zip(PROBES, values, strict=True)) for n, values in E04_PUBLISHED.items()}),
    Arm("SimCLR", "simclr", {"linear": 88.77}),
    *curve("SimCLR+R", "simclr+rotation", "rotation.noise", ROTATION_NOISE, {0.0: {"linear": 90.91}}),
)  # fmt: skip
E04 = Study(
    "E04", "Noise in the rotation labels", "Fig. 3b, Table 4", "cifar10", 200, PROBES, E04_ARMS,
    (
        beats([("BYOL+R, 0 %", "BYOL+R, 20 %"), ("SimCLR+R, 0 %", "SimCLR+R, 20 %")], "linear",
              "the gain falls between no noise and 20 %"),
        beats([("BYOL+R, 0 %", "BYOL+R, 80 %")], "rot f", "noisy labels teach less about rotation"),
        beats([("BYOL+R, 50 %", "BYOL")], "linear", "at 50 % noise a gain over BYOL remains"),
    ),
    axis="noise in rotation labels, %",
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------
# What is learned, and how fast

E05_ARMS = (
    Arm("Supervised", "supervised", {"linear": 94.03, "rot f": 80.54, "contr f": 46.36}),
    Arm("BYOL", "byol", dict(zip(PROBES, (89.30, 73.40, 58.32, 78.53, 78.82), strict=True))),
    Arm("Rotation", "rotation", dict(zip(PROBES, (84.00, 93.69, 93.46, 31.61, 1.52), strict=True))),
    Arm("BYOL+R", "byol+rotation", dict(zip(PROBES, (91.89, 93.73, 93.54, 72.85, 67.81), strict=True))),
)
E05 = Study(
    "E05", "What each task learns", "Table 3", "cifar10", 200, PROBES, E05_ARMS,
    (
        beats([("BYOL+R", "BYOL")], "linear", "the joint objective has better features than BYOL"),
        beats([("BYOL+R", "BYOL")], "rot f", "it knows rotations, which BYOL knows less"),
        beats([("BYOL+R", "Rotation")], "contr f", "it tells images apart, which rotation alone cannot"),
        beats([("BYOL", "BYOL+R")], "contr f", "at a cost in telling images apart"),
    ),
)  # fmt: skip

E06_PUBLISHED = {  # kNN and linear on CIFAR-10, then on CIFAR-100
    "Rotation": (78.01, 84.00, 36.25, 50.87),
    "SimCLR": (86.37, 88.77, 55.10, 62.96), "SimCLR+R": (88.69, 90.91, 57.09, 65.40),
    "BYOL": (86.56, 89.30, 54.37, 60.67), "BYOL+R": (89.80, 91.89, 58.41, 67.03),
    "SwAV": (80.65, 83.60, 40.35, 51.50), "SwAV+R": (85.26, 87.20, 50.09, 58.60),
    "SimSiam": (87.05, 89.77, 56.90, 64.27), "SimSiam+R": (90.35, 91.91, 58.92, 67.38),
}  # fmt: skip
TWO = ("knn", "linear")
E06_ARMS = tuple(
    Arm(name + half, name.lower().replace("+r", "+rotation"), dict(zip(TWO, values[first:], strict=False)), data=data)
    for half, data, first in (("", "", 0), (", C100", "cifar100", 2))
    for name, values in E06_PUBLISHED.items()
)
E06 = Study(
    "E06", "The main table", "Table 5", "cifar10", 200, TWO, E06_ARMS,
    tuple(
        beats([(f"{NAMES[m]}+R{half}", f"{NAMES[m]}{half}")], measure, f"rotation helps {NAMES[m]}{half} ({measure})")
        for half in ("", ", C100") for m in METHODS for measure in TWO
    ) + tuple(
        best(f"SimSiam+R{half}", [a.name for a in E06_ARMS if a.name.endswith(", C100") == bool(half)], "linear",
             f"SimSiam+R{half} is the best (linear)")
        for half in ("", ", C100")
    ),
    note="C100 is the published CIFAR-100 half; where CIFAR-10 stands in for it, the runs are those of the upper half",
)  # fmt: skip

EPOCHS = (50, 100, 150, 200, 300, 400, 600)
E07_ARMS = (
    *lengths("BYOL", "byol", EPOCHS, 200, {200: 89.30}),
    *lengths("Rotation", "rotation", EPOCHS, 200, {200: 84.00}),
    *lengths("BYOL+R", "byol+rotation", EPOCHS, 200, {200: 91.89}),
)
E07 = Study(
    "E07", "Accuracy against epochs", "Fig. 4", "cifar10", 200, ("linear", "knn"), E07_ARMS,
    (
        beats(every(E07_ARMS, "byol", "byol+rotation"), "linear", "rotation is ahead at every length"),
        reaches("byol", "byol+rotation", "linear", 1 / 3, "it reaches BYOL's accuracy in a third of the epochs"),
    ),
    axis="epochs", note="every point is a run with its own schedule",
)  # fmt: skip

SEMI = ("linear", "1 % top1", "1 % top5", "10 % top1", "10 % top5")
E08_ARMS = (
    Arm("Rotation", "rotation", dict(zip(SEMI, (53.86, 34.72, 65.70, 51.18, 81.38), strict=True))),
    *pair("byol", SEMI, (71.02, 46.60, 75.50, 68.00, 89.80), (73.60, 56.40, 83.50, 72.30, 91.40)),
    *pair("simclr", SEMI, (72.02, 57.28, 83.69, 71.44, 91.72), (73.24, 57.80, 83.84, 72.52, 92.10)),
    *pair("swav", SEMI, (72.20, 49.38, 78.41, 67.56, 90.78), (74.40, 52.02, 80.01, 69.68, 91.43)),
)
E08 = Study(
    "E08", "ImageNet-100", "Table 6, top", "imagenet100", 100, SEMI, E08_ARMS,
    tuple(
        beats([(f"{NAMES[m]}+R", NAMES[m]) for m in ("byol", "simclr", "swav")], measure,
              f"rotation helps every method ({measure})")
        for measure in SEMI
    ),
)  # fmt: skip
E09 = Study(
    "E09", "ImageNet-1k", "Table 6, bottom", "imagenet1k", 30, SEMI,
    tuple(pair("swav", SEMI, (54.90, 32.20, 58.20, 51.82, 77.60), (57.30, 32.80, 59.12, 53.80, 78.54))),
    tuple(beats([("SwAV+R", "SwAV")], measure, f"rotation helps SwAV ({measure})") for measure in SEMI),
)  # fmt: skip
E10_ARMS = (
    *lengths("BYOL", "byol", (50, 100, 200), 100, {50: 63.64, 100: 71.02}),
    *lengths("BYOL+R", "byol+rotation", (50, 100, 200), 100, {50: 68.62, 100: 73.60}),
)
E10 = Study(
    "E10", "ImageNet-100 against epochs", "Fig. 5", "imagenet100", 100, ("linear",), E10_ARMS,
    (beats(every(E10_ARMS, "byol", "byol+rotation"), "linear", "rotation helps at every length"),), axis="epochs",
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------
# Variations of the task

TOP = ("linear", "top5")
E11_ARMS = tuple(
    Arm(name, objective, dict(zip(TOP, values, strict=True)))
    for name, objective, values in (
        ("Rotation", "rotation", (53.86, 81.26)), ("Jigsaw", "jigsaw", (42.01, 72.10)),
        ("BYOL", "byol", (71.02, 91.78)),
        ("BYOL+R", "byol+rotation", (73.60, 92.98)), ("BYOL+J", "byol+jigsaw", (73.60, 92.72)),
        ("BYOL+J+R", "byol+jigsaw+rotation", (74.72, 92.94)),
    )
)  # fmt: skip
E11 = Study(
    "E11", "Other tasks", "Table 7", "imagenet100", 100, TOP, E11_ARMS,
    (
        beats([("BYOL+R", "BYOL"), ("BYOL+J", "BYOL")], "linear", "either task helps"),
        best("BYOL+J+R", ("BYOL", "BYOL+R", "BYOL+J"), "linear", "both together help most"),
    ),
)  # fmt: skip

ANGLES = {
    "0, 180": ((0, 180), (58.03, 66.21)), "90, 270": ((90, 270), (53.86, 62.96)), "0, 90": ((0, 90), (56.41, 65.24)),
    "0, 270": ((0, 270), (56.29, 65.04)), "0, 90, 180, 270": ((0, 90, 180, 270), (58.41, 67.03)),
    "45, 135, 225, 315": ((45, 135, 225, 315), (57.60, 65.50)), "8 of 45": (range(0, 360, 45), (57.54, 67.25)),
    "12 of 30": (range(0, 360, 30), (55.43, 63.61)),
}  # fmt: skip
E12 = Study(
    "E12", "Angle sets", "Table S1", "cifar100", 200, TWO,
    (
        Arm("BYOL", "byol", dict(zip(TWO, (54.37, 60.67), strict=True))),
        *(
            Arm(name, "byol+rotation", dict(zip(TWO, published, strict=True)),
                {"rotation": {"angles": [float(a) for a in angles]}})
            for name, (angles, published) in ANGLES.items()
        ),
    ),
    (
        beats([("0, 180", "90, 270"), ("0, 90", "90, 270"), ("0, 270", "90, 270")], "linear", "0° must be in the set"),
        beats([("0, 180", "0, 90"), ("0, 180", "0, 270")], "linear", "evenly spaced angles are better"),
        beats([("0, 90, 180, 270", "12 of 30")], "linear", "four angles beat twelve"),
        beats([("0, 180", "BYOL")], "linear", "two angles are enough for most of the gain"),
    ),
)  # fmt: skip

SHARED = (("conv1", 1, (50.36, 52.50)), ("+block1", 2, (50.98, 52.84)), ("+block2", 3, (51.75, 54.85)),
          ("+block3", 4, (52.77, 58.31)), ("+block4", 5, (58.29, 66.06)),
          ("all of f and g", 0, (58.41, 67.03)))  # fmt: skip
E13 = Study(
    "E13", "How much is shared", "Table S2", "cifar100", 200, TWO,
    (
        Arm("BYOL", "byol", dict(zip(TWO, (54.37, 60.67), strict=True))),
        *(
            Arm(name, "byol+rotation", dict(zip(TWO, published, strict=True)), {"rotation": {"shared": shared}})
            for name, shared, published in SHARED
        ),
    ),
    (
        beats([("BYOL", "conv1"), ("BYOL", "+block1")], "linear", "sharing early layers only hurts"),
        beats([("all of f and g", "BYOL")], "linear", "sharing the whole network helps"),
    ),
)  # fmt: skip
PLAIN_COLORS = {"augment": {"jitter": 0.0}}
E14 = Study(
    "E14", "Without color jitter", "Table S3", "cifar10", 200, TWO,
    (
        *pair("byol", TWO, (86.56, 89.30), (89.80, 91.89)),
        Arm("BYOL, no jitter", "byol", dict(zip(TWO, (82.21, 85.90), strict=True)), PLAIN_COLORS),
        Arm("BYOL+R, no jitter", "byol+rotation", dict(zip(TWO, (88.52, 91.28), strict=True)), PLAIN_COLORS),
    ),
    (
        falls_less(("BYOL+R", "BYOL+R, no jitter"), ("BYOL", "BYOL, no jitter"), "linear",
                   "with rotation less is lost without color jitter"),
    ),
)  # fmt: skip
THREE = ("knn", "linear", "rot f")
FORMS: tuple[tuple[str, str, dict[str, Any], tuple[float, ...]], ...] = (
    ("BYOL", "byol", {}, (86.56, 89.30, 73.40)), ("cross-entropy", "byol+rotation", {}, (89.80, 91.89, 93.73)),
    ("SupCon on angles", "byol+rotation", {"rotation": {"form": "supcon"}}, (88.05, 90.19, 81.86)),
    ("least cosine", "byol+rotation", {"rotation": {"form": "cosine"}}, (86.84, 88.95, 77.27)),
    ("rotated views, no task", "byol", {"augment": {"rotate": True}}, (74.32, 79.70, 66.61)),
    ("rotated views and task", "byol+rotation",
     {"augment": {"rotate": True}, "rotation": {"views": "given", "size": 0}},
     (84.49, 87.75, 94.24)),
)  # fmt: skip
E15 = Study(
    "E15", "Forms of the loss", "Table S4", "cifar10", 200, THREE,
    tuple(Arm(name, objective, dict(zip(THREE, p, strict=True)), flags) for name, objective, flags, p in FORMS),
    (
        best("cross-entropy", [name for name, *_ in FORMS], "linear", "cross-entropy is the best form"),
        beats([("BYOL", "rotated views, no task")], "linear", "rotation as an augmentation hurts"),
        beats([("rotated views and task", "rotated views, no task")], "linear", "adding the task mends much of that"),
        beats([("BYOL", "rotated views and task")], "linear", "but not all"),
    ),
)  # fmt: skip
E16 = Study(
    "E16", "Signal to noise of the gradient", "Fig. S1", "cifar10", 200, ("snr", "linear"),
    (
        Arm("SimSiam", "simsiam", {"linear": 89.77}, {"health": {"snr": True}}),
        Arm("SimSiam+R", "simsiam+rotation", {"linear": 91.91}, {"health": {"snr": True}}),
    ),
    (Claim("with rotation the gradient has a higher signal-to-noise ratio", lambda f: _higher_snr(f)),),
    note="the curve over steps is in the plot; `snr` is its mean over the run, times 1000",
)  # fmt: skip


SNR_DOUBT = 0.05  # a ratio of one run that differs by less decides nothing


def _higher_snr(f: Any) -> bool | None:
    a, b = f.mean("SimSiam", "snr"), f.mean("SimSiam+R", "snr")
    return None if a is None or b is None or abs(b - a) < SNR_DOUBT * a else b > a


# ---------------------------------------------------------------------------------------------------------------
# Beyond the training set

E17_PUBLISHED = {  # SwAV, SwAV+R
    "transfer": (64.91, 66.34), "cifar10": (86.22, 87.85), "cifar100": (64.18, 66.94), "flowers": (83.53, 85.78),
    "caltech101": (80.91, 84.18), "aircraft": (38.78, 42.09), "dtd": (69.79, 69.68), "cars": (31.65, 32.52),
    "food": (59.41, 59.46), "pets": (70.73, 71.27), "sun397": (52.48, 53.25), "voc2007": (76.33, 76.70),
}  # fmt: skip
E17 = Study(
    "E17", "Transfer", "Table S5", "imagenet1k", 30, tuple(E17_PUBLISHED),
    tuple(pair("swav", list(E17_PUBLISHED), *zip(*E17_PUBLISHED.values(), strict=True))),
    (
        beats([("SwAV+R", "SwAV")], "transfer", "rotation helps on average over the sets"),
        *(beats([("SwAV+R", "SwAV")], name, f"rotation helps on {name}") for name in E17_PUBLISHED
          if name not in ("transfer", "dtd")),
    ),
    note="`transfer` is the mean over the sets that were measured; of the paper's 11, without ImageNet's own column",
)  # fmt: skip
VOC = ("AP", "AP50", "AP75", "AP tuned", "AP50 tuned", "AP75 tuned")
E18 = Study(
    "E18", "Detection", "Table S6", "imagenet1k", 30, VOC,
    tuple(pair("swav", VOC, (44.10, 74.54, 45.00, 43.80, 74.46, 45.07), (45.12, 75.37, 46.67, 45.19, 75.17, 46.67))),
    tuple(beats([("SwAV+R", "SwAV")], measure, f"rotation helps detection ({measure})") for measure in VOC),
)  # fmt: skip
E19 = Study(
    "E19", "Longer training", "Table S7", "imagenet1k", 30, ("linear",),
    tuple(lengths("SwAV+R", "swav+rotation", (35, 50, 100), 30, {35: 59.5, 50: 61.9, 100: 64.3})),
    (beats([("SwAV+R, 50 epochs", "SwAV+R, 35 epochs"), ("SwAV+R, 100 epochs", "SwAV+R, 50 epochs")], "linear",
           "longer is better"),),
    axis="epochs",
)  # fmt: skip
E20 = Study(
    "E20", "Settings", "Table S8", "imagenet1k", 30, ("linear",),
    (
        *pair("swav", ("linear",), (54.9,), (57.3,)),
        Arm("SwAV, multi-crop", "swav", {"linear": 65.8}, {"augment": {"small": 6}}, recipe="imagenet1k-swav-multicrop",
            length=50 / 30),
        Arm("SwAV+R, multi-crop", "swav+rotation", {"linear": 68.3}, {"augment": {"small": 6}},
            recipe="imagenet1k-swav-multicrop", length=50 / 30),
    ),
    (beats([("SwAV+R", "SwAV"), ("SwAV+R, multi-crop", "SwAV, multi-crop")], "linear",
           "rotation helps in either setting"),),
)  # fmt: skip

STUDIES = {
    s.name: s
    for s in (E01, E02, E03, E04, E05, E06, E07, E08, E09, E10, E11, E12, E13, E14, E15, E16, E17, E18, E19, E20)
}
