"""E01 … E20: the tables and figures of the paper. Published numbers are the paper's: single runs, in percent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from effssl.schema import nest
from effssl.studies.claims import (
    beats,
    best,
    drops_less,
    gain_grows,
    gain_shrinks,
    gains_between,
    reaches_in_epochs,
    rises,
    rises_like,
    same_within,
)
from effssl.studies.study import Arm, Study

NAMES = {"byol": "BYOL", "simclr": "SimCLR", "simsiam": "SimSiam", "swav": "SwAV", "supcon": "SupCon"}
METHODS = ("simclr", "byol", "swav", "simsiam")
PERCENT = 100


def pair(base: str, metrics: Sequence[str], alone: Sequence[float], joint: Sequence[float]) -> list[Arm]:
    """A base method alone and with the rotation task, with the published values of both."""
    return [
        Arm(NAMES[base], base, dict(zip(metrics, alone, strict=True))),
        Arm(f"{NAMES[base]}+R", f"{base}+rotation", dict(zip(metrics, joint, strict=True))),
    ]


def curve(
    name: str, objective: str, path: str, values: Sequence[float], published: Mapping[float, Mapping[str, float]],
) -> list[Arm]:  # fmt: skip
    """Arms along an axis in percent: one setting takes several values."""
    arms = []
    for value in values:
        flags = nest({path: value})
        at = round(PERCENT * value, 6)
        arms.append(Arm(f"{name}, {at:g} %", objective, published.get(value, {}), flags, at=at))
    return arms


def lengths(
    name: str, objective: str, data_epochs: Sequence[int], longest: int, published: Mapping[int, float]
) -> list[Arm]:
    """Runs of several lengths, each with its own schedule; the axis is in the paper's epochs."""
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


def pairs_along_axis(arms: Sequence[Arm], base: str, joint: str) -> list[tuple[str, str]]:
    """Pairs of arms at the same position of the axis, the one with the task first."""
    return [(b.name, a.name) for a in arms for b in arms if a.curve == base and b.curve == joint and a.at == b.at]


def label(metric: str) -> str:
    """A metric's name in a sentence."""
    return "kNN" if metric == "knn" else metric


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
        beats(pairs_along_axis(E01_ARMS, "simclr", "simclr+rotation"), "linear",
              "rotation improves SimCLR at every share of known labels (linear)"),
        beats([("SimCLR, 100 %", "SimCLR, 0 %")], "linear",
              "SimCLR with all labels known is better than with none (linear)"),
        gain_shrinks("simclr", "simclr+rotation", "linear",
                     "the gain of rotation shrinks as more labels are known (linear)"),
    ),
    axis="labels known, %",
)  # fmt: skip

CROPS = (0.0, 0.25, 0.5, 1.0)
E02_ARMS = (
    *curve("BYOL", "byol", "augment.saliency_share", CROPS,
           {0.0: {"linear": 63.64}, 0.25: {"linear": 64.50}, 0.5: {"linear": 66.30}, 1.0: {"linear": 66.72}}),
    *curve("BYOL+R", "byol+rotation", "augment.saliency_share", CROPS,
           {0.0: {"linear": 68.62}, 0.25: {"linear": 68.30}, 0.5: {"linear": 68.90}, 1.0: {"linear": 70.26}}),
    Arm("BYOL, twice the epochs", "byol", {"linear": 71.02}, length=2.0, curve_name="byol, twice the epochs"),
)  # fmt: skip
E02 = Study(
    "E02", "Fewer false positives: crops chosen by saliency", "Table 2", "imagenet100", 50, ("linear",), E02_ARMS,
    (
        beats([("BYOL, 100 %", "BYOL, 0 %")], "linear", "saliency crops improve BYOL (linear)"),
        beats(pairs_along_axis(E02_ARMS, "byol", "byol+rotation"), "linear",
              "rotation improves BYOL at every share of saliency crops (linear)"),
        gain_shrinks("byol", "byol+rotation", "linear",
                     "the gain of rotation shrinks as the share of saliency crops grows (linear)"),
        beats([("BYOL, twice the epochs", "BYOL, 100 %")], "linear",
              "twice the epochs help BYOL more than saliency crops, whose maps cost more than that (linear)"),
    ),
    axis="saliency crops, %",
    note="needs saliency maps: --maps FILE (effssl saliency writes them); the network that the paper has them from was "
         "trained for 90 epochs with labels",
)  # fmt: skip

NOISE = tuple(n / 10 for n in range(10))
SAME = 1.0  # points; the paper says "similar" and gives no figure
E03_ARMS = (
    *curve("SupCon", "supcon", "supcon.label_noise", NOISE, {}),
    *curve("SupCon+R", "supcon+rotation", "supcon.label_noise", NOISE, {}),
    *(
        Arm(f"SupCon+noisy R, {100 * n:g} %", "supcon+rotation", {},
            {"supcon": {"label_noise": n}, "rotation": {"noise": n}},
            at=100 * n, curve_name="supcon+noisy rotation")
        for n in NOISE
    ),
)  # fmt: skip
E03 = Study(
    "E03", "Label noise in supervised contrastive learning", "Fig. 3a", "cifar10", 200, ("linear",), E03_ARMS,
    (
        beats(pairs_along_axis(E03_ARMS, "supcon", "supcon+rotation"), "linear",
              "rotation improves SupCon at every level of label noise (linear)"),
        gain_grows("supcon", "supcon+rotation", "linear", "the gain of rotation grows with the label noise (linear)"),
        beats([(f"SupCon+R, {100 * n:g} %", f"SupCon+noisy R, {100 * n:g} %") for n in NOISE if n], "linear",
              "rotation labels as noisy as the class labels gain less than clean ones (linear)"),
        same_within([(f"SupCon+noisy R, {100 * n:g} %", f"SupCon, {100 * n:g} %") for n in NOISE if 0 < n <= 0.7],
                    "linear", SAME,
                    f"up to 70 % noise, SupCon+R with equally noisy rotation labels is within {SAME:g} point of SupCon "
                    "(linear)"),
    ),
    axis="label noise, %", note="the paper shows these curves in a figure only; without noise its gain is 0.68 points",
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
              "20 % noise in the rotation labels reduces the accuracy of BYOL+R and SimCLR+R (linear)"),
        beats([("BYOL+R, 0 %", "BYOL+R, 80 %")], "rot f",
              "80 % noise reduces how well BYOL+R predicts rotations (rot f)"),
        beats([("BYOL+R, 50 %", "BYOL")], "linear", "BYOL+R with 50 % noise is better than BYOL (linear)"),
        gains_between([(f"BYOL+R, {n} %", "BYOL") for n in (30, 40, 50, 60)], "linear", (0.47, 1.38),
                      "with 30 to 60 % noise BYOL+R keeps a gain of 0.47 to 1.38 points (linear)"),
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
        beats([("BYOL+R", "BYOL")], "linear", "BYOL+R is better than BYOL (linear)"),
        beats([("BYOL+R", "BYOL")], "rot f", "BYOL+R predicts rotations better than BYOL (rot f)"),
        beats([("BYOL+R", "Rotation")], "contr f", "BYOL+R discriminates images better than rotation alone (contr f)"),
        beats([("BYOL", "BYOL+R")], "contr f", "BYOL discriminates images better than BYOL+R (contr f)"),
        beats([("Supervised", "BYOL")], "rot f", "a supervised network predicts rotations better than BYOL (rot f)"),
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
        beats([(f"{NAMES[m]}+R{half}", f"{NAMES[m]}{half}")], metric,
              f"rotation improves {NAMES[m]}{half} ({label(metric)})", "cifar100" if half else "")
        for half in ("", ", C100") for m in METHODS for metric in TWO
    ) + tuple(
        best(f"SimSiam+R{half}", [a.name for a in E06_ARMS if a.name.endswith(", C100") == bool(half)], "linear",
             f"SimSiam+R{half} is the best (linear)", "cifar100" if half else "")
        for half in ("", ", C100")
    ),
    note="C100 is the CIFAR-100 half of the published table; it is run at paper scale only",
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
        beats(pairs_along_axis(E07_ARMS, "byol", "byol+rotation"), "linear",
              "rotation improves BYOL at every length of training (linear)"),
        reaches_in_epochs("byol", "byol+rotation", "linear", 1 / 3,
                          "BYOL+R reaches BYOL's final accuracy in a third of the epochs (linear)"),
        rises_like("byol+rotation", "rotation", "byol", "linear",
                   "after its shortest run BYOL+R gains more like rotation alone than like BYOL (linear, Fig. 4b)"),
    ),
    axis="epochs", rises=True, note="every point is a run with its own schedule",
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
        beats([(f"{NAMES[m]}+R", NAMES[m]) for m in ("byol", "simclr", "swav")], metric,
              f"rotation improves every method ({label(metric)})")
        for metric in SEMI
    ),
)  # fmt: skip
E09 = Study(
    "E09", "ImageNet-1k", "Table 6, bottom", "imagenet1k", 30, SEMI,
    tuple(pair("swav", SEMI, (54.90, 32.20, 58.20, 51.82, 77.60), (57.30, 32.80, 59.12, 53.80, 78.54))),
    tuple(beats([("SwAV+R", "SwAV")], metric, f"rotation improves SwAV ({label(metric)})") for metric in SEMI),
)  # fmt: skip
E10_ARMS = (
    *lengths("BYOL", "byol", (50, 100, 200), 100, {50: 63.64, 100: 71.02}),
    *lengths("BYOL+R", "byol+rotation", (50, 100, 200), 100, {50: 68.62, 100: 73.60}),
)
E10 = Study(
    "E10", "ImageNet-100 against epochs", "Fig. 5", "imagenet100", 100, ("linear",), E10_ARMS,
    (beats(pairs_along_axis(E10_ARMS, "byol", "byol+rotation"), "linear",
           "rotation improves BYOL at every length of training (linear)"),), axis="epochs",
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
    "E11", "Other pretext tasks", "Table 7", "imagenet100", 100, TOP, E11_ARMS,
    (
        beats([("BYOL+R", "BYOL"), ("BYOL+J", "BYOL")], "linear", "each task improves BYOL (linear)"),
        best("BYOL+J+R", ("BYOL", "BYOL+R", "BYOL+J"), "linear", "both tasks together are better than either (linear)"),
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
                {"views": {"rotated": {"angles": [float(a) for a in angles]}}})
            for name, (angles, published) in ANGLES.items()
        ),
    ),
    (
        beats([("0, 180", "90, 270"), ("0, 90", "90, 270"), ("0, 270", "90, 270")], "linear",
              "two angles with 0° are better than two without (linear)"),
        beats([("0, 180", "0, 90"), ("0, 180", "0, 270")], "linear", "evenly spaced angles are better (linear)"),
        beats([("0, 90, 180, 270", "12 of 30")], "linear", "four angles are better than twelve (linear)"),
        beats([("0, 180", "BYOL")], "linear", "two angles already improve BYOL (linear)"),
    ),
)  # fmt: skip

SHARED = (("conv1", 1, (50.36, 52.50)), ("+block1", 2, (50.98, 52.84)), ("+block2", 3, (51.75, 54.85)),
          ("+block3", 4, (52.77, 58.31)), ("+block4", 5, (58.29, 66.06)),
          ("all of f and g", 0, (58.41, 67.03)))  # fmt: skip
E13 = Study(
    "E13", "How many layers are shared", "Table S2", "cifar100", 200, TWO,
    (
        Arm("BYOL", "byol", dict(zip(TWO, (54.37, 60.67), strict=True))),
        *(
            Arm(name, "byol+rotation", dict(zip(TWO, published, strict=True)), {"rotation": {"shared": shared}})
            for name, shared, published in SHARED
        ),
    ),
    (
        beats([("BYOL", "conv1"), ("BYOL", "+block1")], "linear",
              "sharing only the early layers is worse than BYOL (linear)"),
        beats([("all of f and g", "BYOL")], "linear", "sharing the whole network improves BYOL (linear)"),
        rises([name for name, *_ in SHARED], "linear", "each further shared part is better (linear)"),
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
        drops_less(("BYOL+R", "BYOL+R, no jitter"), ("BYOL", "BYOL, no jitter"), "linear",
                   "without color jitter BYOL+R loses less accuracy than BYOL (linear)"),
    ),
)  # fmt: skip
FOUR = ("knn", "linear", "rot f", "contr f")  # the paper has the last one of three rows
FORMS: tuple[tuple[str, str, dict[str, Any], tuple[float, ...]], ...] = (
    ("BYOL", "byol", {}, (86.56, 89.30, 73.40, 78.53)),
    ("cross-entropy", "byol+rotation", {}, (89.80, 91.89, 93.73, 72.85)),
    ("SupCon on angles", "byol+rotation_supcon", {}, (88.05, 90.19, 81.86)),
    ("least cosine", "byol+rotation_cosine", {}, (86.84, 88.95, 77.27)),
    ("rotated views, no task", "byol", {"views": {"large": {"rotated": True}}}, (74.32, 79.70, 66.61)),
    ("rotated views and task", "byol+rotation",
     {"views": {"large": {"rotated": True}, "rotated": {"count": 0}}},
     (84.49, 87.75, 94.24, 64.34)),
)  # fmt: skip
E15 = Study(
    "E15", "Forms of the loss", "Table S4", "cifar10", 200, FOUR,
    tuple(Arm(name, objective, dict(zip(FOUR, p, strict=False)), flags) for name, objective, flags, p in FORMS),
    (
        best("cross-entropy", [name for name, *_ in FORMS], "linear",
             "cross-entropy is the best form of the rotation loss (linear)"),
        beats([("BYOL", "rotated views, no task")], "linear",
              "rotation as an augmentation alone is worse than BYOL (linear)"),
        beats([("rotated views and task", "rotated views, no task")], "linear",
              "predicting the rotation improves BYOL with rotated views (linear)"),
        beats([("BYOL", "rotated views and task")], "linear",
              "BYOL is better than rotated views with the task (linear)"),
        beats([("cross-entropy", "rotated views and task")], "contr f",
              "a base method on rotated views discriminates images less well than one on upright views (contr f)"),
    ),
    note="the paper does not say whether its contrastive accuracy here is that of f or of g(f); that of E05 is of f",
)  # fmt: skip
E16 = Study(
    "E16", "Signal-to-noise ratio of the gradient", "Fig. S1", "cifar10", 200, ("snr", "snr m/v", "linear"),
    (
        Arm("SimSiam", "simsiam", {"linear": 89.77}, {"health": {"snr": True}}),
        Arm("SimSiam+R", "simsiam+rotation", {"linear": 91.91}, {"health": {"snr": True}}),
    ),
    (
        beats([("SimSiam+R", "SimSiam")], "snr",
              "rotation raises the signal-to-noise ratio of SimSiam's gradient (snr)"),
        beats([("SimSiam+R", "SimSiam")], "snr m/v",
              "rotation raises the signal-to-noise ratio of SimSiam's gradient (the paper's form, snr m/v)"),
    ),
    note="the figure shows the curve of `snr` over epochs. `snr` is m²/v, which does not change with the scale of the "
         "loss, and `snr m/v` is the paper's form, the absolute mean over the variance. Both are means over the "
         "run without the first 300 steps, times 1000. Stationary noise without any signal has an `snr` of about 5",
)  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------
# Beyond the training set

E17_PUBLISHED = {  # SwAV, SwAV+R
    "average": (64.08, 65.59), "linear": (54.90, 57.30), "transfer": (64.91, 66.34),
    "cifar10": (86.22, 87.85), "cifar100": (64.18, 66.94), "flowers": (83.53, 85.78),
    "caltech101": (80.91, 84.18), "aircraft": (38.78, 42.09), "dtd": (69.79, 69.68), "cars": (31.65, 32.52),
    "food": (59.41, 59.46), "pets": (70.73, 71.27), "sun397": (52.48, 53.25), "voc2007": (76.33, 76.70),
}  # fmt: skip
E17 = Study(
    "E17", "Transfer", "Table S5", "imagenet1k", 30, tuple(E17_PUBLISHED),
    tuple(pair("swav", list(E17_PUBLISHED), *zip(*E17_PUBLISHED.values(), strict=True))),
    (
        beats([("SwAV+R", "SwAV")], "average", "rotation improves SwAV on average over all columns (average)"),
        beats([("SwAV+R", "SwAV")], "transfer", "rotation improves SwAV on average over the data sets (transfer)"),
        *(beats([("SwAV+R", "SwAV")], name, f"rotation improves SwAV on {name} (transfer)") for name in E17_PUBLISHED
          if name not in ("average", "linear", "transfer", "dtd")),
    ),
    note="`linear` is the paper's column ImageNet: the run's own data; `transfer` is the mean over the sets that were "
         "measured, `average` that over them and `linear`, the paper's Avg.; C is chosen for SwAV and reused with R",
)  # fmt: skip
VOC = ("AP", "AP50", "AP75", "AP tuned", "AP50 tuned", "AP75 tuned")
E18 = Study(
    "E18", "Detection", "Table S6", "imagenet1k", 30, VOC,
    tuple(pair("swav", VOC, (44.10, 74.54, 45.00, 43.80, 74.46, 45.07), (45.12, 75.37, 46.67, 45.19, 75.17, 46.67))),
    tuple(beats([("SwAV+R", "SwAV")], metric, f"rotation improves detection ({label(metric)})") for metric in VOC),
    note="AP, AP50 and AP75 with stem to res4 frozen; `tuned` with nothing frozen",
)  # fmt: skip
E19 = Study(
    "E19", "Longer training", "Table S7", "imagenet1k", 30, ("linear",),
    tuple(lengths("SwAV+R", "swav+rotation", (35, 50, 100), 30, {35: 59.5, 50: 61.9, 100: 64.3})),
    (beats([("SwAV+R, 50 epochs", "SwAV+R, 35 epochs"), ("SwAV+R, 100 epochs", "SwAV+R, 50 epochs")], "linear",
           "longer training is better (linear)"),),
    axis="epochs",
)  # fmt: skip
MULTI_CROP = {"views": {"small": {"count": 6}}}
E20 = Study(
    "E20", "With and without multi-crop", "Table S8", "imagenet1k", 30, ("linear",),
    (
        *pair("swav", ("linear",), (54.9,), (57.3,)),
        Arm("SwAV, multi-crop", "swav", {"linear": 65.8}, MULTI_CROP, length=50 / 30,
            recipe="imagenet1k-swav-multicrop"),
        Arm("SwAV+R, multi-crop", "swav+rotation", {"linear": 68.3}, MULTI_CROP, length=50 / 30,
            recipe="imagenet1k-swav-multicrop"),
    ),
    (beats([("SwAV+R", "SwAV"), ("SwAV+R, multi-crop", "SwAV, multi-crop")], "linear",
           "rotation improves SwAV with and without multi-crop (linear)"),),
)  # fmt: skip

STUDIES = {
    s.name: s
    for s in (E01, E02, E03, E04, E05, E06, E07, E08, E09, E10, E11, E12, E13, E14, E15, E16, E17, E18, E19, E20)
}
