"""effssl classify: from few labels to predictions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from effssl.commands.encoder_source import EncoderSource
from effssl.commands.image_tables import show_table
from effssl.commands.one_line import parse_command
from effssl.runtime.errors import RequestError

if TYPE_CHECKING:
    from effssl.explore.classify import Classification

OPTIONS = ("encoder", "weights", "image_size", "device", "batch", "workers")


@dataclass(frozen=True)
class ClassifyOptions(EncoderSource):
    """Predict the labels of images from those of a few.

    The best of kNN, logistic regression and fine-tuning is chosen by cross-validation on the labelled images. A saved
    classifier in place of RUN needs no --labels.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = ""
    """run folder, weight file, torchvision model or timm:<name>; or a classifier that was saved"""
    labels: str = ""
    """CSV file with the columns file (its path in the folder, or its name) and label"""
    data: str = ""
    """folder of images, of any layout, with the labelled ones among them; by default the run's own"""
    features: str = ""
    """file of an earlier effssl embed RUN, in place of --data"""
    out: str = ""
    """file of predictions to write: .csv or .parquet (needs pyarrow)"""
    save: str = ""
    """.safetensors file for the classifier; by default beside --out"""
    finetune: Literal["auto", "on", "off"] = "auto"
    """compare fine-tuning of the encoder, too; auto does where that takes up to two minutes"""
    next: int = 20
    """how many images to name that should be labelled next"""
    batch: int = 256
    """images per batch; smaller batches need less memory"""
    workers: int = -1
    """processes that decode; −1 is one per core"""
    overwrite: bool = False
    """replace existing files of --out and --save"""


def classify_(args: list[str]) -> None:
    """Parse the command line, train or load a classifier, and write its predictions."""
    options = parse_command(ClassifyOptions, args, "effssl classify")
    if not options.run:
        raise RequestError("which encoder? effssl classify RUN --labels labels.csv --out FILE")
    if not options.out:
        raise RequestError("which file to write? --out predictions.csv or .parquet")
    from effssl.explore.classify import check_classifier, check_predictions, classify

    out = check_predictions(options.out, options.overwrite)
    if options.save and not options.labels:
        raise RequestError("--save is for a classifier that is trained now; add --labels")
    save = Path(options.save) if options.save else out.with_suffix(".classifier.safetensors")
    if options.labels:
        check_classifier(save, options.overwrite)
    found = classify(
        options.run,
        options.data or None,
        options.labels or None,
        features=options.features or None,
        label_next=options.next,
        finetune=options.finetune,
        **{name: getattr(options, name) for name in OPTIONS},
    )
    _show(found)
    print(f"written: {found.write(out, options.overwrite)}")
    if options.labels:
        saved = found.save(save, options.overwrite)
        print(f"written: {saved}   next: effssl classify {saved} --data OTHER --out FILE")
        print(f"for other software: effssl export {saved} --to onnx")


def _show(found: Classification) -> None:
    """Which classifier, how sure, and what to label next."""
    classifier, expected = found.classifier, found.classifier.expected
    compared = ", ".join(f"{name} {accuracy:.1f} %" for name, accuracy in expected.compared.items())
    print(f"{classifier.name}: the best of {compared} in cross-validation", end=" ")
    print(f"on {expected.images} labelled images of {len(classifier.classes)} classes")
    print(f"expected accuracy {expected.accuracy:.1f} % (95 %: {expected.low:.1f} to {expected.high:.1f} %)", end="")
    print(f", chance {expected.chance:.1f} %")
    if expected.low <= expected.chance:
        print("this may be no better than chance: label more images, or use a better encoder")
    sure = sum(one.probability >= 0.9 for one in found.predictions)
    print(f"{len(found.predictions)} images predicted, {sure} of them with a probability of 0.9 or more")
    columns = [{"image": one.file, "label": one.label, "probability": one.probability} for one in found.label_next]
    if columns:
        show_table(columns, f"{len(columns)} images to label next: uncertain and diverse")
