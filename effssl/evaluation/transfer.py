"""Linear transfer: logistic regression on frozen features. Kornblith et al. 2019, Ericsson et al. 2021."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch.utils.data import DataLoader, Dataset

from effssl.augment.crop import center_boxes
from effssl.data import ArrayImages, Data, FolderImages, Images, PackedImages
from effssl.data.transfer import SETS, TransferSet, fifth, fingerprint
from effssl.errors import RequestError, did_you_mean
from effssl.evaluation.features import extract, labelled
from effssl.evaluation.options import Transfer
from effssl.evaluation.score import Score
from effssl.evaluation.voc import eleven_point_ap
from effssl.network.loaded import LoadedEncoder
from effssl.progress import counter, say

BATCH = 250


def evaluate_transfer(encoder: LoadedEncoder, data: Data | str, options: Transfer) -> Score:
    """One labelled data set, or the named ones of the eleven below a folder; the value is the mean over sets."""
    if options.grid < 1 or options.max_iter < 1:
        raise RequestError("transfer needs at least one value of C and one iteration")
    seen = encoder.looking(share=1.0, filter="bicubic")  # the shorter side becomes the size, then the center square
    known = reused(options.reuse)
    if isinstance(data, Data):
        train, test = labelled(data, "transfer")
        made = TransferSet(train, data.held_out, test, split="the folder's")
        result = transfer_to(seen, data.name, made, options, known.get(data.name))
        also = {"mean_per_class": result.pop("mean_per_class")}
        more = {key: result[key] for key in ("C", "chosen_on", "split")}
        score = Score("transfer", result["value"], "accuracy", constants(options) | more, also)
        return score.on(data.name, train=train, test=test)
    results: dict[str, dict[str, Any]] = {}
    for name in chosen_sets(options.sets):
        try:
            made = SETS[name](Path(data), options.download, options.seed)
        except RequestError as error:
            if options.sets != "all":
                raise
            say(f"left out: {error}")
            continue
        results[name] = transfer_to(seen, name, made, options, known.get(name))
    if not results:
        raise RequestError(f"none of the eleven data sets is ready under {data}; try --download")
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
    """C by data set, from the JSON file of another transfer result."""
    if not path:
        return {}
    try:
        record = json.loads(Path(path).read_text())
        record = record.get("transfer", record)
        found = record["constants"]
        if "sets" in found:
            return {name: float(result["C"]) for name, result in found["sets"].items()}
        return {record["source"]["data"]: float(found["C"])}
    except FileNotFoundError:
        raise RequestError(f"no such file: {path}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise RequestError(f"{path} is not a transfer result of effssl") from None


# ---------------------------------------------------------------------------------------------------------------
# One data set


def transfer_to(
    encoder: LoadedEncoder, name: str, made: TransferSet, options: Transfer, known: float | None
) -> dict[str, Any]:
    """Features, C, refit on train and validation, one look at test."""
    fit_x, fit_y, fit_print = features_of(encoder, made.fit, f"{name} train")
    test_x, test_y, test_print = features_of(encoder, made.test, f"{name} test")
    if made.val is not None:
        val_x, val_y, _ = features_of(encoder, made.val, f"{name} validation")
        all_x, all_y = np.concatenate([fit_x, val_x]), np.concatenate([fit_y, val_y])
        held_out = "its own validation images"
    else:
        rows, held = fifth(len(fit_x), 0)
        all_x, all_y = fit_x, fit_y
        val_x, val_y, fit_x, fit_y = fit_x[held], fit_y[held], fit_x[rows], fit_y[rows]
        held_out = "a random fifth of train, numpy seed 0"
    metric = made.metric
    if options.reuse and known is None:
        raise RequestError(f"{options.reuse} holds no C for {name}")
    c = known if known is not None else choose_c(fit_x, fit_y, val_x, val_y, metric, options, name)
    scores = Classifier(options.max_iter).fit(all_x, all_y, c).scores(test_x)
    result = {
        "value": measure(scores, test_y, metric), "metric": metric, "C": c, "chosen_on": held_out, "split": made.split,
        "train_images": len(all_x), "test_images": len(test_x), "train_fingerprint": fit_print,
        "test_fingerprint": test_print,
    }  # fmt: skip
    if metric == "accuracy":
        result["mean_per_class"] = measure(scores, test_y, "mean per class")
    return result


class Classifier:
    """Logistic regression, or one per column where labels are many yes/no answers; starts where the last fit ended."""

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
                model.set_params(C=c).fit(x, column)
        self.several = y.ndim > 1
        return self

    def scores(self, x: np.ndarray) -> np.ndarray:
        """N×classes: predicted probabilities, or decision values where labels are yes/no answers."""
        if self.several:
            return np.stack([model.decision_function(x) for model in self.models], 1)
        model, scores = self.models[0], np.zeros((len(x), int(self.models[0].classes_.max()) + 1))
        scores[:, model.classes_] = model.predict_proba(x)
        return scores


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
    grid = np.logspace(-5, 6, options.grid)
    with counter(f"{name}: choosing C", len(grid)) as advance:
        for c in grid:
            value = measure(classifier.fit(fit_x, fit_y, float(c)).scores(val_x), val_y, metric)
            best = max(best, (value, float(c)), key=lambda pair: pair[0])
            advance(1)
    return best[1]


def measure(scores: np.ndarray, y: np.ndarray, metric: str) -> float:
    """Percent, by the data set's own metric."""
    if metric == "11-point mAP":
        order = torch.from_numpy(scores).argsort(dim=0, descending=True, stable=True)  # N×classes
        present = torch.from_numpy(y).bool().gather(0, order)
        return 100 * float(torch.stack([eleven_point_ap(column, int(column.sum())) for column in present.T]).mean())
    right = scores.argmax(1) == y
    if metric == "mean per class":
        return 100 * float(np.mean([right[y == label].mean() for label in np.unique(y)]))
    return 100 * float(right.mean())


# ---------------------------------------------------------------------------------------------------------------
# Features


def features_of(encoder: LoadedEncoder, source: Images | Dataset, text: str) -> tuple[np.ndarray, np.ndarray, str]:
    """Features N×D, labels, and a fingerprint of the images."""
    if isinstance(source, (ArrayImages, FolderImages, PackedImages)):
        features = extract(encoder, source, text)
        assert features.labels is not None
        return features.h.numpy(), features.labels.numpy(), source.fingerprint()
    count = len(source)  # type: ignore[arg-type]
    squares = _Squares(source, encoder)
    digest, parts, labels = hashlib.blake2b(digest_size=8), [], []
    loader: DataLoader = DataLoader(squares, BATCH, num_workers=os.cpu_count() or 1)
    with torch.inference_mode(), counter(text, count) as advance:
        for pixels, label in loader:
            digest.update(pixels.numpy().tobytes())
            parts.append(encoder(pixels.to(encoder.device)).float().cpu())
            labels.append(label)
            advance(len(label))
    y = torch.cat(labels)
    return torch.cat(parts).numpy(), y.numpy(), fingerprint(digest, y)


class _Squares(Dataset):
    """The center square of each picture at the encoder's size, uint8: all pictures have one shape."""

    def __init__(self, source: Dataset, encoder: LoadedEncoder) -> None:
        self.source, self.size, self.share, self.filter = source, encoder.size, encoder.share, encoder.filter

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        from PIL import Image

        picture, label = self.source[i]
        top, left, height, width = center_boxes(torch.tensor([[picture.height, picture.width]]), self.share)[0].tolist()
        filter = Image.Resampling.BICUBIC if self.filter == "bicubic" else Image.Resampling.BILINEAR
        square = picture.resize((self.size, self.size), filter, box=(left, top, left + width, top + height))
        return torch.from_numpy(np.asarray(square).copy()).permute(2, 0, 1), label

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]
