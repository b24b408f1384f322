"""Linear transfer: logistic regression on frozen features. Kornblith et al. 2019, Ericsson et al. 2021."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch.utils.data import DataLoader, Dataset

from effssl.augment.crop import center_boxes
from effssl.data import ArrayImages, Data, FolderImages, Images, PackedImages
from effssl.data.decoding import begin_worker
from effssl.data.transfer import SETS, TransferSet, fifth, fingerprint, picture_name, refuse_unread
from effssl.evaluation.options import Transfer
from effssl.evaluation.score import Score
from effssl.evaluation.voc import eleven_point_ap
from effssl.features.extract import extract, labelled
from effssl.network.loaded import LoadedEncoder
from effssl.runtime.errors import RequestError, did_you_mean
from effssl.runtime.progress import counter, say, spinner

BATCH = 250


def evaluate_transfer(encoder: LoadedEncoder, data: Data | str, options: Transfer) -> Score:
    """One labelled data set, or the named ones of the eleven below a folder; the value is the mean over sets."""
    seen = encoder.looking(share=1.0, filter="bicubic")  # the shorter side becomes the size, then the center square
    known = reused(options.reuse)
    if isinstance(data, Data):
        train, test = labelled(data, "transfer")
        need_c([data.name], known, options)
        made = TransferSet(train, data.held_out, test, split="the folder's", whole=False)
        result, rows = transfer_to(seen, data.name, made, options, known.get(data.name))
        also = {"mean_per_class": result.pop("mean_per_class")}
        more = {key: result[key] for key in ("C", "chosen_on", "validation_images", "split")}
        score = Score("transfer", result["value"], "accuracy", constants(options) | more, also)
        parts = {"train": train, "test": test} | ({} if data.held_out is None else {"validation": data.held_out})
        return score.on(data, **{part: (images, rows[part]) for part, images in parts.items()})
    root, ready = Path(data).expanduser(), {}
    for name in chosen_sets(options.sets):
        try:
            ready[name] = SETS[name](root, options.download, options.seed)
        except RequestError as error:
            if options.sets != "all":
                raise
            say(f"left out: {error}")
    if not ready:
        raise RequestError(f"none of the eleven data sets is ready under {data}; try --download")
    need_c(ready, known, options)
    results: dict[str, dict[str, Any]] = {}
    for name, made in ready.items():
        try:
            results[name] = transfer_to(seen, name, made, options, known.get(name))[0]
        except RequestError as error:
            if not results and name == list(ready)[-1]:
                raise
            say(f"left out: {error}")  # hours of other sets are not thrown away for one picture
    values = {name: result["value"] for name, result in results.items()}
    mean = sum(values.values()) / len(values)
    also = dict(values)
    if options.imagenet:
        also["average_with_imagenet"] = (sum(values.values()) + options.imagenet) / (len(values) + 1)
    missing = [name for name in SETS if name not in values]
    more = {"sets": results, "not_measured": missing}
    return Score(
        "transfer", mean, f"mean over {len(values)} sets", constants(options) | more, also, {"data": "transfer sets"}
    )


def need_c(names: Iterable[str], known: dict[str, float], options: Transfer) -> None:
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


def constants(options: Transfer) -> dict[str, Any]:
    """What was fixed, in words."""
    grid = f"{options.grid} values from 1e-5 to 1e6"
    chosen = f"taken from {Path(options.reuse).name}" if options.reuse else "chosen on validation, then refit with it"
    return {
        "classifier": "multinomial logistic regression, L2, L-BFGS", "max_iter": options.max_iter, "C_grid": grid,
        "C_chosen": chosen, "features": "h, no augmentation, shorter side resized (bicubic), center square",
        "seed": options.seed,
    }  # fmt: skip


def reused(path: str) -> dict[str, float]:
    """C by data set, from the JSON file of another transfer result, or of all results of a run."""
    if not path:
        return {}
    found: dict[str, set[float]] = {}
    try:
        record = json.loads(Path(path).expanduser().read_text())
        whole = record if "protocol" not in record else {"": record}
        records = [one for one in whole.values() if one["protocol"] == "transfer"]
        for one in records:
            sets = one["constants"].get("sets", {one["source"]["data"]: one["constants"]})
            for name, result in sets.items():
                found.setdefault(name, set()).add(float(result["C"]))
        if not records:
            raise ValueError("no transfer result")
    except FileNotFoundError:
        raise RequestError(f"no such file: {path}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise RequestError(f"{path} is not a transfer result of effssl") from None
    for name, several in found.items():
        if len(several) > 1:
            raise RequestError(
                f"{path} holds {len(several)} different C for {name}; give the --out file of the one to reuse"
            )
    return {name: c for name, (c,) in found.items()}


# ---------------------------------------------------------------------------------------------------------------
# One data set


def transfer_to(
    encoder: LoadedEncoder, name: str, made: TransferSet, options: Transfer, known: float | None
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Features, C, refit on train and validation, one look at test; the result, and the rows read of each part."""
    fit = features_of(encoder, made.fit, f"{name} train", made.whole)
    test = features_of(encoder, made.test, f"{name} test", made.whole)
    rows, metric = {"train": fit.rows, "test": test.rows}, made.metric
    result: dict[str, Any] = {"metric": metric, "split": made.split}
    if made.val is not None:
        val = features_of(encoder, made.val, f"{name} validation", made.whole)
        rows["validation"] = val.rows
        all_x, all_y = np.concatenate([fit.x, val.x]), np.concatenate([fit.y, val.y])
        result |= {"chosen_on": "its own validation images", "validation_fingerprint": val.fingerprint}
    else:
        mine, held = fifth(len(fit.x), 0)
        all_x, all_y, val, fit = fit.x, fit.y, fit.among(held), fit.among(mine)
        result["chosen_on"] = "a random fifth of train, numpy seed 0"
    check_labels(all_y, f"the training images of {name}")
    if known is None:
        if not len(val.x):
            raise RequestError(
                f"{name} has {len(all_x)} training images: a fifth of them is none to choose C by; add images, or val/"
            )
        check_labels(fit.y, f"what is left of {name} without validation images")
        known = choose_c(fit.x, fit.y, val.x, val.y, metric, options, name)
    with spinner(f"{name}: fitting {len(all_x)} images with C = {known:.3g}"):
        scores = Classifier(options.max_iter).fit(all_x, all_y, known).scores(test.x)
    result |= {
        "value": measure(scores, test.y, metric, name), "C": known, "train_images": len(all_x),
        "validation_images": len(val.x), "test_images": len(test.x), "train_fingerprint": fit.fingerprint,
        "test_fingerprint": test.fingerprint,
    }  # fmt: skip
    if metric == "accuracy":
        result["mean_per_class"] = measure(scores, test.y, "mean per class", name)
    if metric == "11-point mAP":
        result["classes_counted"] = count = int(counted(scores, test.y).sum())
        if count < test.y.shape[1]:
            say(f"{name}: {count} of {test.y.shape[1]} classes count; the others are not in both train and test")
    return result, rows


def check_labels(y: np.ndarray, what: str) -> None:
    """Refuse labels that hold nothing to tell apart."""
    if len(np.unique(y)) < 2:
        raise RequestError(f"{what} ({len(y)}) show fewer than two classes; transfer needs more images")


class Classifier:
    """Logistic regression, or one per column where labels are many yes/no answers; starts where the last fit ended.

    A question that has the same answer for all images cannot be fit and is left out.
    """

    def __init__(self, max_iter: int) -> None:
        self.max_iter = max_iter
        self.models: list[LogisticRegression] = []

    def fit(self, x: np.ndarray, y: np.ndarray, c: float) -> Classifier:
        """Fit with regularization 1/c."""
        columns = [y] if y.ndim == 1 else list(y.T)
        if not self.models:
            self.models = [LogisticRegression(max_iter=self.max_iter, warm_start=True) for _ in columns]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the protocol stops after max_iter iterations
            for model, column in zip(self.models, columns, strict=True):
                if column.min() != column.max():
                    model.set_params(C=c).fit(x, column)
        self.several = y.ndim > 1
        return self

    def scores(self, x: np.ndarray) -> np.ndarray:
        """N×classes: predicted probabilities, or decision values where labels are yes/no answers, nan if not fit."""
        if self.several:
            unknown = np.full(len(x), np.nan)
            fitted = [hasattr(model, "classes_") for model in self.models]
            return np.stack(
                [m.decision_function(x) if done else unknown for m, done in zip(self.models, fitted, strict=True)], 1
            )
        model, scores = self.models[0], np.zeros((len(x), int(self.models[0].classes_.max()) + 1))
        scores[:, model.classes_] = model.predict_proba(x)
        return scores


def c_grid(options: Transfer) -> np.ndarray:
    """Values of C from strong to weak regularization."""
    return np.logspace(-5, 6, options.grid)


def choose_c(
    fit_x: np.ndarray,
    fit_y: np.ndarray,
    val_x: np.ndarray,
    val_y: np.ndarray,
    metric: str,
    options: Transfer,
    name: str,
) -> float:
    """The C that is best on validation; from strong to weak regularization, each starting where the last one ended."""
    classifier, best = Classifier(options.max_iter), (-1.0, 0.0)
    grid = c_grid(options)
    with counter(f"{name}: choosing C", len(grid)) as advance:
        for c in grid:
            value = measure(classifier.fit(fit_x, fit_y, float(c)).scores(val_x), val_y, metric, name)
            best = max(best, (value, float(c)), key=lambda pair: pair[0])
            advance(1)
    return best[1]


def counted(scores: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which yes/no questions count: those that were fit and that have a yes among `y`; one boolean per column."""
    return ~np.isnan(scores).any(0) & y.any(0)


def measure(scores: np.ndarray, y: np.ndarray, metric: str, name: str = "the set") -> float:
    """Percent, by the data set's own metric."""
    if metric == "11-point mAP":
        columns = counted(scores, y)
        if not columns.any():
            raise RequestError(f"no class of {name} is shown both where it is learned and where it is looked for")
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


def features_of(encoder: LoadedEncoder, source: Images | Dataset, text: str, whole: bool = True) -> Part:
    """Features of a part of a set; of one that must be `whole`, a picture that cannot be read is refused."""
    if isinstance(source, (ArrayImages, FolderImages, PackedImages)):
        features = extract(encoder, source, text)
        if whole and isinstance(source, FolderImages) and len(features.rows) < len(source):
            read = set(features.rows.tolist())
            refuse_unread(text, [str(path) for row, path in enumerate(source.paths) if row not in read])
        assert features.labels is not None
        return Part(features.h.numpy(), features.labels.numpy(), features.rows, source.fingerprint())
    count = len(source)  # type: ignore[arg-type]
    if not count:
        raise RequestError(f"{text}: there are no images")
    digest, parts, labels, bad = hashlib.blake2b(digest_size=8), [], [], ""
    loader: DataLoader = DataLoader(
        _Squares(source, encoder),
        BATCH,
        num_workers=os.cpu_count() or 1,
        collate_fn=_collate,
        worker_init_fn=partial(begin_worker, parent=os.getpid()),
    )
    with torch.inference_mode(), counter(text, count) as advance:
        for batch in loader:
            if isinstance(batch, str):
                bad = batch
                break  # raised below, when the workers are gone
            pixels, label, digests = batch
            digest.update(digests)
            parts.append(encoder(pixels.to(encoder.device)).float().cpu())
            labels.append(label)
            advance(len(label))
    if bad:
        raise RequestError(f"{text}: {bad}")
    y = torch.cat(labels)
    return Part(torch.cat(parts).numpy(), y.numpy(), torch.arange(count), fingerprint(digest, y))


def _collate(items: list[Any]) -> Any:
    """A batch, or what is wrong with its first bad picture: an exception would come with a worker's traceback."""
    bad = next((item for item in items if isinstance(item, str)), None)
    if bad is not None:
        return bad
    pixels, labels, digests = zip(*items, strict=True)
    return torch.stack(pixels), torch.stack(labels), b"".join(digests)


class _Squares(Dataset):
    """The center square of each picture at the encoder's size, uint8, so that all have one shape; label; digest."""

    def __init__(self, source: Dataset, encoder: LoadedEncoder) -> None:
        self.source, self.size, self.share, self.filter = source, encoder.size, encoder.share, encoder.filter

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor, bytes] | str:
        try:
            picture, label = self.source[i]
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            return f"{picture_name(self.source, i)} cannot be read: {' '.join(str(error).split())}"
        # Of the picture as it is, so that the fingerprint knows nothing of the encoder's size.
        digest = hashlib.blake2b(np.asarray(picture).tobytes(), digest_size=8).digest()
        top, left, height, width = center_boxes(torch.tensor([[picture.height, picture.width]]), self.share)[0].tolist()
        filter = Image.Resampling.BICUBIC if self.filter == "bicubic" else Image.Resampling.BILINEAR
        square = picture.resize((self.size, self.size), filter, box=(left, top, left + width, top + height))
        return torch.from_numpy(np.asarray(square).copy()).permute(2, 0, 1), label, digest

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]
