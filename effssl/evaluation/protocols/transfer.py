"""L2-regularized logistic regression on frozen features of other data sets, C chosen on validation.

Kornblith et al. 2019, Ericsson et al. 2021.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from effssl.data import Data, Images
from effssl.data.cifar import data_folder
from effssl.data.transfer import SETS, TransferSet, fifth, refuse_unread
from effssl.evaluation.protocol import EvaluationProtocol
from effssl.evaluation.score import Score
from effssl.evaluation.voc import eleven_point_ap
from effssl.features.extract import extract, labelled
from effssl.features.logistic import fit_quietly
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError, did_you_mean
from effssl.runtime.progress import progress_bar, say, spinner
from effssl.runtime.reading import read_json
from effssl.schema import Between, Positive, Seed


@dataclass(frozen=True)
class TransferOptions:
    """Options of linear transfer."""

    sets: str = ""
    """comma-separated names of the 11 data sets below the folder --data, or all; default: --data is one labelled set"""
    reuse: str = ""
    """JSON file of another transfer result whose C is used instead of choosing one"""
    imagenet: Annotated[float, Between(0, 100)] = 0.0
    """linear accuracy on ImageNet to count in a second average, as the paper does"""
    grid: Positive = 45
    """values of C between 1e-5 and 1e6"""
    max_iter: Positive = 100
    """iterations of L-BFGS"""
    download: bool = False
    """download data sets that are not below --data"""
    seed: Seed = 0


def evaluate_transfer(encoder: LoadedEncoder, data: Data | str, options: TransferOptions) -> Score:
    """One labelled data set, or the named ones of the eleven below a folder; the value is the mean over sets."""
    encoder = encoder.with_transform(
        share=1.0, filter="bicubic"
    )  # the shorter side becomes the size, then the center square
    if isinstance(data, Data):
        return transfer_to_data(encoder, data, options)
    return transfer_to_sets(encoder, Path(data).expanduser(), options)


def transfer_to_data(encoder: LoadedEncoder, data: Data, options: TransferOptions) -> Score:
    """The score on one labelled data set."""
    train, test = labelled(data, "transfer")
    known = reused_c(options.reuse)
    check_reused([data.name], known, options)
    parts = TransferSet(train, data.held_out, test, split="the folder's", whole=False)
    result, rows = transfer_to(encoder, data.name, parts, options, known.get(data.name))
    also = {"mean_per_class": result.pop("mean_per_class")}
    chosen = {key: result[key] for key in ("C", "chosen_on", "validation_images", "split")}
    score = Score("transfer", result["value"], "accuracy", constants(options) | chosen, also)
    images = {"train": train, "test": test} | ({} if data.held_out is None else {"validation": data.held_out})
    return score.on(data, **{part: (images[part], rows[part]) for part in images})


def transfer_to_sets(encoder: LoadedEncoder, root: Path, options: TransferOptions) -> Score:
    """The mean over the chosen ones of the eleven data sets; of `all`, those that cannot be read are left out."""
    known = reused_c(options.reuse)
    ready: dict[str, TransferSet] = {}
    for name in chosen_sets(options.sets):
        try:
            ready[name] = SETS[name](root, options.download, options.seed)
        except RequestError as error:
            if options.sets != "all":
                raise
            say(f"left out: {error}")
    if not ready:
        raise RequestError(f"none of the eleven data sets is ready under {root}; try --download")
    check_reused(ready, known, options)
    results: dict[str, dict[str, Any]] = {}
    for name, parts in ready.items():
        try:
            results[name] = transfer_to(encoder, name, parts, options, known.get(name))[0]
        except RequestError as error:
            if not results and name == list(ready)[-1]:
                raise
            say(f"left out: {error}")  # hours of other sets are not thrown away for one image
    values = {name: result["value"] for name, result in results.items()}
    mean = sum(values.values()) / len(values)
    also = dict(values)
    if options.imagenet:
        also["average_with_imagenet"] = (sum(values.values()) + options.imagenet) / (len(values) + 1)
    missing = [name for name in SETS if name not in values]
    details = constants(options) | {"sets": results, "not_measured": missing}
    return Score("transfer", mean, f"mean over {len(values)} sets", details, also, {"data": "transfer sets"})


def check_reused(names: Iterable[str], known: dict[str, float], options: TransferOptions) -> None:
    """Refuse, before anything slow, a file to reuse that lacks a set."""
    missing = [name for name in names if name not in known]
    if options.reuse and missing:
        raise RequestError(f"{options.reuse} holds no C for {', '.join(missing)}")


def chosen_sets(text: str) -> list[str]:
    """The names in `a,b,c`, or all."""
    names = list(SETS) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in SETS:
            raise RequestError(f"unknown data set {name!r}{did_you_mean(name, SETS)}; known: {', '.join(SETS)}")
    return names


def constants(options: TransferOptions) -> dict[str, Any]:
    """All that was fixed, in words."""
    grid = f"{options.grid} values from 1e-5 to 1e6"
    chosen = f"taken from {Path(options.reuse).name}" if options.reuse else "chosen on validation, then refit with it"
    return {
        "classifier": "multinomial logistic regression, L2, L-BFGS", "max_iter": options.max_iter, "C_grid": grid,
        "C_chosen": chosen, "features": "h, no augmentation, shorter side resized (bicubic), center square",
        "seed": options.seed,
    }  # fmt: skip


def reused_c(path: str) -> dict[str, float]:
    """C by data set, from the JSON file of another transfer result, or of all results of a run."""
    if not path:
        return {}
    found: dict[str, set[float]] = {}
    try:
        record = read_json(Path(path).expanduser())
        scores = record if "protocol" not in record else {"": record}
        records = [score for score in scores.values() if score["protocol"] == "transfer"]
        for score in records:
            sets = score["constants"].get("sets", {score["source"]["data"]: score["constants"]})
            for name, result in sets.items():
                found.setdefault(name, set()).add(float(result["C"]))
        if not records or not all(0 < c < math.inf for several in found.values() for c in several):
            raise ValueError("no transfer result")
    except FileNotFoundError:
        raise RequestError(f"no such file: {path}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise RequestError(f"{path} is not a transfer result of effssl") from None
    for name, several in found.items():
        if len(several) > 1:
            raise RequestError(
                f"{path} holds {len(several)} different C for {name}; use the --out file of the score to reuse"
            )
    return {name: c for name, (c,) in found.items()}


# ---------------------------------------------------------------------------------------------------------------
# One data set


def transfer_to(
    encoder: LoadedEncoder, name: str, parts: TransferSet, options: TransferOptions, known: float | None
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Features, C, refit on train and validation, accuracy on test; the result, and the rows read of each part."""
    fit = features_of(encoder, parts.fit, f"{name} train", parts.whole)
    test = features_of(encoder, parts.test, f"{name} test", parts.whole)
    rows = {"train": fit.rows, "test": test.rows}
    result: dict[str, Any] = {"metric": parts.metric, "split": parts.split}
    if parts.val is not None:
        val = features_of(encoder, parts.val, f"{name} validation", parts.whole)
        rows["validation"] = val.rows
        all_x, all_y = np.concatenate([fit.x, val.x]), np.concatenate([fit.y, val.y])
        result |= {"chosen_on": "its own validation images", "validation_fingerprint": val.fingerprint}
    else:
        kept, held = fifth(len(fit.x), 0)
        all_x, all_y, val, fit = fit.x, fit.y, fit.among(held), fit.among(kept)
        result["chosen_on"] = "a random fifth of train, numpy seed 0"
    check_labels(all_y, f"the training images of {name}")
    c = known
    if c is None:
        check_validation(fit, val, name)
        c = choose_c(fit, val, parts.metric, options, name)
    with spinner(f"{name}: fitting {len(all_x)} images with C = {c:.3g}"):
        scores = LinearClassifier(options.max_iter).fit(all_x, all_y, c).scores(test.x)
    result |= {
        "value": percent_of(scores, test.y, parts.metric, name), "C": c, "train_images": len(all_x),
        "validation_images": len(val.x), "test_images": len(test.x), "train_fingerprint": fit.fingerprint,
        "test_fingerprint": test.fingerprint,
    }  # fmt: skip
    if parts.metric == "accuracy":
        result["mean_per_class"] = percent_of(scores, test.y, "mean per class", name)
    if parts.metric == "11-point mAP":
        result["classes_counted"] = count = int(counted(scores, test.y).sum())
        if count < test.y.shape[1]:
            say(f"{name}: {count} of {test.y.shape[1]} classes count; the others are not in both train and test")
    return result, rows


def check_validation(fit: Part, val: Part, name: str) -> None:
    """Refuse images that C cannot be chosen by."""
    if not len(val.x):
        raise RequestError(
            f"{name} has {len(fit.x)} training images: a fifth of them is none to choose C by; add images, or val/"
        )
    check_labels(fit.y, f"the training images of {name} without those for validation")


def check_labels(y: np.ndarray, what: str) -> None:
    """Refuse labels of fewer than two classes."""
    if len(np.unique(y)) < 2:
        raise RequestError(f"{what} ({len(y)}) show fewer than two classes; transfer needs more images")


class LinearClassifier:
    """Logistic regression, or one per column of multi-label targets; each fit starts where the last one ended.

    A column that is the same for all images cannot be fit and is left out.
    """

    def __init__(self, max_iter: int) -> None:
        self.max_iter = max_iter
        self.models: list[LogisticRegression] = []

    def fit(self, x: np.ndarray, y: np.ndarray, c: float) -> LinearClassifier:
        """Fit with regularization 1/c."""
        columns = [y] if y.ndim == 1 else list(y.T)
        if not self.models:
            self.models = [LogisticRegression(max_iter=self.max_iter, warm_start=True) for _ in columns]
        for model, column in zip(self.models, columns, strict=True):
            if column.min() != column.max():
                fit_quietly(model.set_params(C=c), x, column)
        self.several = y.ndim > 1
        return self

    def scores(self, x: np.ndarray) -> np.ndarray:
        """N×classes: predicted probabilities, or decision values of multi-label targets, nan if not fit."""
        if self.several:
            unknown = np.full(len(x), np.nan)
            fitted = [hasattr(model, "classes_") for model in self.models]
            return np.stack(
                [m.decision_function(x) if done else unknown for m, done in zip(self.models, fitted, strict=True)], 1
            )
        model, scores = self.models[0], np.zeros((len(x), int(self.models[0].classes_.max()) + 1))
        scores[:, model.classes_] = model.predict_proba(x)
        return scores


def c_grid(options: TransferOptions) -> np.ndarray:
    """Values of C from strong to weak regularization."""
    return np.logspace(-5, 6, options.grid)


def choose_c(fit: Part, val: Part, metric: str, options: TransferOptions, name: str) -> float:
    """The C that is best on validation; from strong to weak regularization, each starting where the last one ended."""
    classifier, best = LinearClassifier(options.max_iter), (-1.0, 0.0)
    grid = c_grid(options)
    with progress_bar(f"{name}: choosing C", len(grid)) as advance:
        for c in grid:
            scores = classifier.fit(fit.x, fit.y, float(c)).scores(val.x)
            value = percent_of(scores, val.y, metric, name)
            best = max(best, (value, float(c)), key=lambda pair: pair[0])
            advance(1)
    return best[1]


def counted(scores: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which classes count: those that were fit and that `y` holds; one boolean per column."""
    return ~np.isnan(scores).any(0) & y.any(0)


def percent_of(scores: np.ndarray, y: np.ndarray, metric: str, name: str = "the set") -> float:
    """The data set's own metric, in percent."""
    if metric == "11-point mAP":
        columns = counted(scores, y)
        if not columns.any():
            raise RequestError(f"no class of {name} is in both train and test")
        scores, y = scores[:, columns], y[:, columns]
        order = torch.from_numpy(scores).argsort(dim=0, descending=True, stable=True)  # N×classes
        present = torch.from_numpy(y).bool().gather(0, order)
        return 100 * float(torch.stack([eleven_point_ap(column, int(column.sum())) for column in present.T]).mean())
    right = scores.argmax(1) == y
    if metric == "mean per class":
        return 100 * float(np.mean([right[y == label].mean() for label in np.unique(y)]))
    return 100 * float(right.mean())


# ---------------------------------------------------------------------------------------------------------------
# Features


@dataclass(frozen=True)
class Part:
    """Features N×D and labels of a part of a set, the rows of the images that could be read, and a fingerprint."""

    x: np.ndarray
    y: np.ndarray
    rows: torch.Tensor
    fingerprint: str

    def among(self, places: np.ndarray) -> Part:
        """Some of them."""
        return replace(self, x=self.x[places], y=self.y[places], rows=self.rows[places])


def features_of(encoder: LoadedEncoder, images: Images, text: str, whole: bool = True) -> Part:
    """Features of a part of a set; if it must be `whole`, an image that cannot be read is refused."""
    paths = images.paths if whole else None
    if paths is not None:  # files that were missing when the set was opened: known before anything slow
        refuse_unread(text, [str(paths[row]) for row in (images.sizes == 0).any(1).nonzero().flatten().tolist()])
    features = extract(encoder, images, text)
    if paths is not None and len(features.rows) < len(images):
        read = set(features.rows.tolist())
        refuse_unread(text, [str(path) for row, path in enumerate(paths) if row not in read])
    assert features.labels is not None
    return Part(features.h.numpy(), features.labels.numpy(), features.rows, images.fingerprint())


PROTOCOL = EvaluationProtocol(
    "transfer",
    TransferOptions,
    evaluate_transfer,
    reads_folder=lambda options: bool(options.sets),
    default_folder=lambda: str(data_folder()),
    path_options=("reuse",),
)
