"""From few labels to predictions: the best classifier by cross-validation, and the images to label next."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from effssl.explore.classifier import CPU, FOLDS, train_classifier
from effssl.explore.embedding import FeaturesLike, embed, load_embedding
from effssl.explore.encoder import EncoderLike, EncodingOptions, encoder_digest, open_encoder, own_data
from effssl.explore.feature_files import Embedding, import_pyarrow
from effssl.explore.gallery import open_gallery
from effssl.explore.labels import Labels, Names, check_classes, read_labels
from effssl.explore.subset import farthest_first
from effssl.explore.tuning import FineTune, open_tuner
from effssl.features.classifier import Classifier
from effssl.features.classifier_files import SUFFIX, is_classifier_file, load_classifier, save_classifier
from effssl.network.loaded import LoadedEncoder
from effssl.run import RunFolder
from effssl.runtime.errors import RequestError
from effssl.runtime.files import atomic_path, check_output, write_atomically
from effssl.runtime.progress import say

if TYPE_CHECKING:
    from typing_extensions import Unpack

LabelsLike = str | Path | Mapping[str, str]
"""A CSV file with the columns file and label, or labels by file."""
POOL = 3  # times as many uncertain images as are to be labelled next: the diverse ones are chosen among them


@dataclass(frozen=True)
class Prediction:
    """The most probable class of an image; its rank among the images to label next, if it is one of them."""

    file: str
    label: str
    probability: float
    next: int | None


@dataclass(frozen=True)
class Classification:
    """A classifier and its predictions for the images without a label."""

    predictions: list[Prediction]
    probabilities: np.ndarray  # of each prediction and class, N×C
    classifier: Classifier
    encoder: LoadedEncoder

    @property
    def label_next(self) -> list[Prediction]:
        """Uncertain and diverse images: those whose labels help most."""
        return sorted((one for one in self.predictions if one.next), key=lambda one: one.next or 0)

    def write(self, out: str | Path, overwrite: bool = False) -> Path:
        """Write the predictions to a .csv or .parquet file."""
        path = check_predictions(out, overwrite)
        columns = [field.name for field in fields(Prediction)]
        rows = [asdict(one) for one in self.predictions]
        if path.suffix == ".parquet":
            pa, pq = import_pyarrow()
            kinds = zip(columns, (pa.string(), pa.string(), pa.float64(), pa.int64()), strict=True)
            with atomic_path(path) as file:
                pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(list(kinds))), file)
            return path
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | {"probability": f"{row['probability']:.4f}"} for row in rows)
        write_atomically(path, text.getvalue())
        return path

    def save(self, out: str | Path, overwrite: bool = False) -> Path:
        """Write the classifier with its encoder; `effssl.classify(out, folder)` predicts with it."""
        path = check_classifier(out, overwrite)
        save_classifier(path, self.classifier, self.encoder)
        return path


def check_predictions(out: str | Path, overwrite: bool) -> Path:
    """Refuse a file of predictions that could not be written, before anything slow."""
    path = Path(out).expanduser()
    if path.suffix not in (".csv", ".parquet"):
        raise RequestError(f"--out is {out}; predictions are written as .csv or .parquet")
    if path.suffix == ".parquet":
        import_pyarrow()
    check_output(path, overwrite)
    return path


def check_classifier(out: str | Path, overwrite: bool) -> Path:
    """Refuse a classifier file that could not be written, before anything slow."""
    path = Path(out).expanduser()
    if path.suffix != SUFFIX:
        raise RequestError(f"--save is {out}; the name of a classifier file ends with {SUFFIX}")
    check_output(path, overwrite)
    return path


def classify(
    run: EncoderLike,
    data: str | Path | None = None,
    labels: LabelsLike | None = None,
    *,
    features: FeaturesLike | None = None,
    label_next: int = 20,
    finetune: FineTune = "auto",
    **options: Unpack[EncodingOptions],
) -> Classification:
    """Train a classifier on few labelled images, and predict the others; or predict with a saved classifier.

    Args:
        run: anything `effssl.load` takes, a Run, a loaded encoder, or a classifier that was saved
        data: folder of images, or another data set; by default the run's own
        labels: CSV file with the columns file and label, or a mapping; none with a saved classifier
        features: a file of `effssl.embed` with the same encoder, in place of data
        label_next: how many images to name that should be labelled next
        finetune: whether fine-tuning is compared, too: auto where that takes up to two minutes, on, off
        options: encoder, weights, image_size, device, batch, workers, as of `effssl.embed`
    """
    if label_next < 0:
        raise RequestError(f"label_next is {label_next}; it must be at least 0: the number of images to label next")
    known = _read(labels, run)
    encoder = open_encoder(run, options)
    if data is None and features is None:
        data = own_data(run)
    if features is None and known.files:
        gallery = open_gallery(str(data), "none")  # a file that is not there is reported before features are computed
        known.rows(Names.of(gallery.names + gallery.unreadable, data))
    embedding = _features(encoder, data, features, options)
    unreadable = embedding.metadata.unreadable if embedding.metadata else []
    names = Names.of(embedding.names + unreadable, data)
    labelled = _readable(known.rows(names), len(embedding))
    if labels is None:
        classifier = load_classifier(_path(run), encoder.dim)
    else:
        check_classes(list(labelled.values()), known.source)
        tuner = open_tuner(encoder, data, [embedding.names[row] for row in labelled], finetune, FOLDS + 1)
        classifier, tuned = train_classifier(embedding.features[list(labelled)], list(labelled.values()), tuner)
        if tuned is not None:  # all images are predicted from its features
            encoder, embedding = tuned, _features(tuned, data, None, options)
    rest = np.setdiff1d(np.arange(len(embedding)), list(labelled))
    probabilities = classifier.probabilities(embedding.features)[rest]
    chosen = uncertain_and_diverse(probabilities, embedding.features, rest, label_next)
    files = [names.relative(embedding.names[row]) for row in rest.tolist()]
    return Classification(_predictions(files, probabilities, classifier, chosen), probabilities, classifier, encoder)


def uncertain_and_diverse(probabilities: np.ndarray, features: np.ndarray, rows: np.ndarray, count: int) -> list[int]:
    """Which predictions to label next: among those with the smallest margins, the most different ones."""
    count = min(count, len(rows))
    if not count:
        return []
    best = np.sort(probabilities, axis=1)
    margin = best[:, -1] - best[:, -2]
    pool = np.argsort(margin, kind="stable")[: POOL * count]
    # In the order of the file, memory-mapped features are read faster.
    pool.sort()
    return [int(pool[i]) for i in farthest_first(np.asarray(features[rows[pool]]), count, 0, CPU)[0]]


def _predictions(
    files: list[str], probabilities: np.ndarray, classifier: Classifier, chosen: list[int]
) -> list[Prediction]:
    rank = {row: i for i, row in enumerate(chosen, start=1)}
    best = probabilities.argmax(1).tolist() if len(files) else []
    return [
        Prediction(file, classifier.classes[top], float(probabilities[row, top]), rank.get(row))
        for row, (file, top) in enumerate(zip(files, best, strict=True))
    ]


def _read(labels: LabelsLike | None, run: EncoderLike) -> Labels:
    """The given labels, or none where a saved classifier needs none."""
    if labels is None:
        if isinstance(run, (RunFolder, LoadedEncoder)) or not is_classifier_file(_path(run)):
            raise RequestError(
                "which labels? --labels labels.csv, with the columns file and label; only a classifier that effssl "
                "classify has saved needs none"
            )
        return Labels({}, "")
    known = Labels(dict(labels), "labels") if isinstance(labels, Mapping) else read_labels(labels)
    check_classes(list(known.files.values()), known.source)
    return known


def _path(run: EncoderLike) -> Path:
    return Path(str(run)).expanduser()


def _features(
    encoder: LoadedEncoder, data: str | Path | None, features: FeaturesLike | None, options: EncodingOptions
) -> Embedding:
    """The features of all images, by this encoder."""
    if features is None:
        assert data is not None
        return embed(encoder, data, labels="none", **options)
    embedding = load_embedding(None, data, features, {})
    computed = embedding.metadata and embedding.metadata.encoder_digest
    if computed != encoder_digest(encoder):
        raise RequestError("the features are of another encoder than RUN; compute them again: effssl embed RUN …")
    return embedding


def _readable(labelled: dict[int, str], count: int) -> dict[int, str]:
    """Of the labelled images, those with features, which come first; the others are counted."""
    kept = {row: label for row, label in sorted(labelled.items()) if row < count}
    if len(kept) < len(labelled):
        say(f"{len(labelled) - len(kept)} labelled images cannot be read and are left out")
    return kept
