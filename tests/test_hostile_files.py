"""Every kind of file that effssl reads, mutated: read, or refused in one line; never a traceback.

`EFFSSL_FUZZ=1000 pytest tests/test_hostile_files.py` mutates each kind a thousand times.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import shutil
import signal
import tarfile
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tifffile
import torch
from imagecodecs import png_encode
from PIL import Image
from sklearn.datasets import load_sample_image

import effssl
from effssl.config import config_type
from effssl.data.cifar import open_cifar
from effssl.data.folder import class_names, load_folder
from effssl.data.image_files import FORMATS
from effssl.data.listing import as_listed, write_list
from effssl.data.packing import pack
from effssl.data.saliency import SaliencyMaps
from effssl.data.voc import LAYOUT, read_voc
from effssl.evaluation.protocols.transfer import reused_c
from effssl.explore.classifier import train_classifier
from effssl.explore.feature_files import Embedding, Metadata, write_features
from effssl.explore.labels import read_labels
from effssl.features.classifier_files import load_classifier, save_classifier
from effssl.loading import load_run_encoder
from effssl.network.encoders import build_encoder
from effssl.network.foreign import read_weights
from effssl.network.loaded import dump_encoder, freeze, load_encoder
from effssl.recipes import resolve
from effssl.report import refresh, write_report
from effssl.report.study import read_study
from effssl.report.summary import summarize
from effssl.report.watch import has_ended, last_write
from effssl.run import RunFolder
from effssl.runtime.append_store import AppendStore, claim_folder
from effssl.runtime.errors import RequestError, RunFailed
from effssl.runtime.signals import Stop
from effssl.schema import check, read_yaml
from effssl.studies import load
from effssl.studies.overview import summaries
from effssl.studies.plan import ArmRun
from effssl.studies.results import StudyResults, results_record
from effssl.studies.runner import ArmResult
from effssl.studies.sweep import Trial
from effssl.training.checkpoint import load_checkpoint, save_checkpoint
from effssl.training.saving import Checkpoints
from effssl.training.trainer import Trainer
from tests.data.test_formats import save_dicom
from tests.hostile_kept import KEPT
from tests.mutations import mutated

COUNT = int(os.environ.get("EFFSSL_FUZZ", "8"))  # mutations of each kind
SLOW, MEMORY = 10.0, 2 << 20  # seconds, KiB
DIGITS = {"data": "digits", "subset": 64}
ABOUT = {"encoder": "tiny", "image_size": 16, "stem": "auto", "mean": [0.5] * 3, "std": [0.25] * 3}
STUDY = {"study": "X", "title": "x", "claims": [], "runs": [
    {"arm": "a", "objective": "byol", "at": None, "values": {"knn": 1.0}, "published": {}, "flops": 1.0}
]}  # fmt: skip


def write_photo(path: Path) -> Callable[[], object]:
    """A photograph in the format that the file is called after, whatever its suffix."""
    photo = Image.fromarray(load_sample_image("china.jpg")).resize((80, 60))
    photo.save(path, path.stem if path.stem.upper() in FORMATS else None)
    return lambda: first_image(path.parent)


def first_image(source: Path | str) -> object:
    """What training, evaluation and reports take from a data set."""
    train = effssl.open_data(str(source)).train
    return train.fingerprint(), train.labels, train.classes, train.paths, train.image(0)


def write_pixels(path: Path) -> Callable[[], object]:
    """An image of more than 8 bits or of other channels than pictures have."""
    values = np.arange(20 * 30 * 4).reshape(20, 30, 4).astype(np.uint16) * 20
    if path.suffix == ".png" and path.stem != "a":
        path.write_bytes(png_encode(values[..., : len(path.stem)].copy()))
    elif path.suffix == ".png":
        Image.fromarray(values[..., 0]).save(path)
    elif path.suffix == ".tif":
        tifffile.imwrite(path, values)
    elif path.suffix == ".dcm":
        save_dicom(path, values[..., 0])
    else:
        np.save(path, values.astype(np.float32) / 1e5)
    return lambda: first_image(path.parent)


def write_table(path: Path) -> Callable[[], object]:
    write_photo(path.parent / "a.png")
    rows = {"path": ["a.png"] * 3, "label": ["x", "y", "x"], "split": ["train", "train", "test"]}
    if path.suffix == ".parquet":
        pq.write_table(pa.table(rows), path)
    else:
        separator = "\t" if path.suffix == ".tsv" else ","
        path.write_text("\n".join(separator.join(row) for row in [rows.keys(), *zip(*rows.values(), strict=True)]))
    return lambda: first_image(path)


def write_archive(path: Path) -> Callable[[], object]:
    """With class folders, or as shards with a label beside each image."""
    write_photo(path.parent / "photo.png")
    content = (path.parent / "photo.png").read_bytes()
    files = {"train/x/1.png": content, "train/y/2.png": content, "val/x/3.png": content}
    if path.stem == "shard":
        files = {"1.png": content, "1.json": b'{"label": 0}', "2.png": content, "2.json": b'{"label": 1}'}
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, some in files.items():
                archive.writestr(name, some)
    else:
        with tarfile.open(path, "w") as tar:
            for name, some in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(some)
                tar.addfile(member, io.BytesIO(some))
    return lambda: first_image(path)


def write_saved_data_set(path: Path) -> Callable[[], object]:
    write_photo(path.parent.parent / "photo.png")
    images = [{"bytes": (path.parent.parent / "photo.png").read_bytes(), "path": None}] * 2
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["x", "y"])})
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"image": images, "label": [0, 1]}, features).save_to_disk(str(path.parent))
    return lambda: first_image(f"hf:{path.parent}")


def write_voc(path: Path) -> Callable[[], object]:
    """An annotation, or a list of images."""
    year = path.parents[2] if path.suffix == ".txt" else path.parents[1]
    for part in LAYOUT:
        (year / part).mkdir(parents=True, exist_ok=True)
    write_photo(year / "JPEGImages" / "000001.jpg")
    (year / "ImageSets/Main/train.txt").write_text("000001\n")
    box = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>40</xmax><ymax>50</ymax></bndbox>"
    (year / "Annotations/000001.xml").write_text(
        f"<annotation><object><name>cat</name><difficult>0</difficult>{box}</object></annotation>"
    )
    return lambda: read_voc(year.parent, "train")


def write_stored_cifar(path: Path) -> Callable[[], object]:
    images, labels = np.zeros((4, 32, 32, 3), np.uint8), np.arange(4)
    arrays = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}
    np.savez(path, **arrays, classes=np.array(list("abcd")))

    def read() -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("EFFSSL_DATA", str(path.parent))
            return open_cifar("cifar10").train.image(0)

    return read


def write_class_names(path: Path) -> Callable[[], object]:
    path.write_text("cat\ndog\n")
    return lambda: class_names(str(path))


def write_request(path: Path) -> Callable[[], object]:
    path.write_text("data: digits\nobjective: byol+rotation\nlr: 0.1\nviews:\n  large: {count: 2}\nbatch_size: 32\n")
    return lambda: check(resolve({}, path).config)


def write_lock(path: Path) -> Callable[[], object]:
    run = RunFolder.create(path.parent, config_type()())
    with run.locked():
        pass

    def read() -> object:
        with run.locked():
            return run.begun_by_this_job(), has_ended(run.folder), last_write(run.folder)

    return read


def write_report_page(path: Path) -> Callable[[], object]:
    run = RunFolder.create(path.parent, config_type()())
    run.log({"epoch": 0, "images": 0, "seconds": 0.0, "flops": 0, "knn": 20.0, "verdict": "learning", "why": "x"})
    write_report([str(path.parent)], images=0)
    return lambda: refresh(run)


def write_records(path: Path) -> Callable[[], object]:
    """The files of a job that was stopped: it resumes after its complete records."""
    store = AppendStore(path.parent / "data.part", path.parent / "rows.part", np.dtype(np.uint8), lambda x: 4 * len(x))
    with store:
        store.append([np.ones(2, np.float32)], np.ones(2, np.uint8))

    def read() -> object:
        with claim_folder(path.parent, {"format": "x"}, "was begun otherwise", discard=()), store:
            return store.records()

    (path.parent / "plan.json").write_text('{"format": "x"}')
    return read


def write_trial(path: Path) -> Callable[[], object]:
    trial = Trial({"data": "digits", "objective": "byol"}, {"lr": 0.1}, path.parents[1])
    file = trial.folder.with_suffix(".json")
    file.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"state": "finished", "why": "", "tried": {"lr": 0.1}, "curve": {"1": 20.0}}))

    def read() -> object:
        file.unlink(missing_ok=True)
        os.link(path, file)  # the name that follows from its settings
        return trial.done(True), trial.score

    return read


def write_transfer_result(path: Path) -> Callable[[], object]:
    constants = {"sets": {"cifar10": {"C": 0.1}}}
    path.write_text(json.dumps({"protocol": "transfer", "value": 1.0, "constants": constants, "source": {"data": "x"}}))
    return lambda: reused_c(str(path))


def write_resumed(path: Path) -> Callable[[], object]:
    """A checkpoint that a run of its own settings goes on from, and is evaluated with."""
    plan = resolve(DIGITS | {"objective": "byol+rotation", "encoder": "tiny", "image_size": 16, "batch_size": 32})
    trainer = Trainer(plan, effssl.open_data("digits", subset=64), torch.device("cpu"))
    trainer.train_step(next(trainer.loader.epoch(0)))
    run = RunFolder.create(path.parent, plan.config)
    save_checkpoint(path, trainer.state())

    def read() -> object:
        Checkpoints(run, trainer, Stop()).restore()
        return load_run_encoder(run)

    return read


def write_settings(path: Path) -> Callable[[], object]:
    RunFolder.create(path.parent, config_type()())
    return lambda: RunFolder(path.parent).config


def write_metrics(path: Path) -> Callable[[], object]:
    run = RunFolder.create(path.parent, config_type()())
    run.log({"epoch": 0, "images": 0, "seconds": 0.0, "flops": 0, "knn": 20.0, "verdict": "learning", "why": "x"})
    run.log({"epoch": 1, "step": 8, "images": 512, "seconds": 1.5, "flops": 10, "loss": 1.0, "accuracy/rotation": 0.3})
    return lambda: summarize(run)


def write_results(path: Path) -> Callable[[], object]:
    run = RunFolder.create(path.parent, config_type()())
    run.add_result("knn", {"protocol": "knn", "value": 50.0, "metric": "accuracy", "constants": {}, "source": {}})
    return lambda: summarize(run)


def write_study(path: Path) -> Callable[[], object]:
    path.write_text(json.dumps(STUDY))
    return lambda: read_study(path.parent)


def write_listed_study(path: Path) -> Callable[[], object]:
    study = load("E14")
    run = ArmRun(study.arms[0], 0, {"epochs": 1}, {}, path.parent / "arm")
    result = ArmResult(run, {"knn": 20.0}, seconds=1.0, flops=1.0)
    path.write_text(json.dumps(results_record(StudyResults(study, "smoke", [result]))))
    return lambda: summaries(path.parents[1])


def write_arrays(path: Path) -> Callable[[], object]:
    images, labels = np.zeros((4, 8, 8, 3), np.uint8), np.arange(4)
    np.savez(path, images=images, labels=labels, test_images=images, test_labels=labels)
    return lambda: first_image(path)


def write_array(path: Path) -> Callable[[], object]:
    np.save(path, np.zeros((4, 8, 8, 3), np.uint8))
    return lambda: first_image(path)


def write_list_of_images(path: Path) -> Callable[[], object]:
    write_photo(path.parent / "a.png")
    images = load_folder(path.parent).train
    write_list(images, path)
    return lambda: as_listed(images, path)


def write_maps(path: Path) -> Callable[[], object]:
    images = effssl.open_data("digits").train
    np.savez(path, maps=np.zeros((len(images), 2, 2), np.float16), fingerprint=images.fingerprint())
    return lambda: SaliencyMaps.open(str(path), images)


def write_packed(path: Path) -> Callable[[], object]:
    write_photo(path.parent.parent / "photos.png")
    (path.parent.parent / "photos").mkdir()
    shutil.move(path.parent.parent / "photos.png", path.parent.parent / "photos")
    pack(path.parent.parent / "photos", path.parent, workers=0)
    return lambda: first_image(path.parent)


def write_encoder(path: Path) -> Callable[[], object]:
    path.write_bytes(dump_encoder(build_encoder("tiny", 16), ABOUT))
    x = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    return lambda: load_encoder(path)(x)


def write_classifier(path: Path) -> Callable[[], object]:
    x = np.eye(4, dtype=np.float32)
    encoder = freeze(build_encoder("tiny", 16), ABOUT)
    save_classifier(path, train_classifier(x.repeat(2, 0), list("aabbccdd"))[0], encoder)
    return lambda: load_classifier(path, 4).probabilities(x)


def write_labels(path: Path) -> Callable[[], object]:
    path.write_text('file,label\na.png,x\n"b, c.png",y\n')
    return lambda: read_labels(path)


def write_weights(path: Path) -> Callable[[], object]:
    torch.save({"state_dict": {"conv.weight": torch.zeros(4, 3, 3, 3)}}, path)
    return lambda: read_weights(path)


def write_checkpoint(path: Path) -> Callable[[], object]:
    save_checkpoint(path, {"objective": {"a": torch.zeros(3)}, "position": {"epoch": 1}})
    return lambda: load_checkpoint(path)


def write_feature_file(path: Path) -> Callable[[], object]:
    path = path.with_suffix("") if path.suffix == ".json" else path
    metadata = Metadata("tiny", "a", "b", 4, False)
    write_features(path, Embedding(list("abcd"), np.eye(4, dtype=np.float32), ["x", "y", "x", None], metadata))
    return lambda: effssl.outliers(features=path)


KINDS: dict[str, Callable[[Path], Callable[[], object]]] = {
    "in/a.jpg": write_photo, "in/a.png": write_photo, "in/a.webp": write_photo, "in/a.bmp": write_photo,
    "in/gif.png": write_photo, "in/tiff.png": write_photo, "in/ppm.png": write_photo,
    "deep/a.png": write_pixels, "deep/a.tif": write_pixels, "deep/a.dcm": write_pixels, "deep/a.npy": write_pixels,
    "deep/la.png": write_pixels, "deep/rgb.png": write_pixels, "deep/rgba.png": write_pixels,
    "t.csv": write_table, "t.tsv": write_table, "t.parquet": write_table,
    "a.zip": write_archive, "a.tar": write_archive, "shard.tar": write_archive,
    "hf/state.json": write_saved_data_set, "hf/dataset_info.json": write_saved_data_set,
    "hf/data-00000-of-00001.arrow": write_saved_data_set,
    "VOC2007/Annotations/000001.xml": write_voc, "VOC2007/ImageSets/Main/train.txt": write_voc,
    "cifar10.npz": write_stored_cifar, "classes.txt": write_class_names,
    "a.npz": write_arrays, "a.npy": write_array, "in/images.npz": write_list_of_images, "maps.npz": write_maps,
    "pack/pack.json": write_packed, "pack/index.npz": write_packed,
    "request.yaml": write_request, "run/config.yaml": write_settings, "run/metrics.jsonl": write_metrics,
    "run/results.json": write_results, "run/lock": write_lock, "run/report.html": write_report_page,
    "run/checkpoint.pt": write_resumed, "checkpoint.pt": write_checkpoint,
    "study/results.json": write_study,
    "studies/E14-smoke/results.json": write_listed_study, "sweep/trials/trial.json": write_trial,
    "transfer.json": write_transfer_result,
    "encoder.safetensors": write_encoder, "classifier.safetensors": write_classifier, "labels.csv": write_labels,
    "weights.pth": write_weights,
    "f.npz": write_feature_file, "f.csv": write_feature_file, "f.csv.json": write_feature_file,
    "f.parquet": write_feature_file, "job/plan.json": write_records, "job/rows.part": write_records,
    "job/data.part": write_records, **KEPT,
}  # fmt: skip


def most_memory() -> int:
    """The largest resident size of this process so far, in KB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("in_tmp")
@pytest.mark.parametrize("name", KINDS)
def test_mutated_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    read = KINDS[name](path)
    read()  # as it was written, it is read
    whole, dice, before, faults = path.read_bytes(), random.Random(name), most_memory(), {}
    for number in range(COUNT):
        path.write_bytes(mutated(name, whole, dice))
        fault = fault_of(read)
        if fault and fault not in faults:
            faults[fault] = number
            shutil.copy(path, tmp_path / f"mutation{number}")
    assert not faults, f"by number of the mutation, in {tmp_path}"
    assert most_memory() - before < MEMORY


class TooSlow(BaseException):
    """Not an Exception: readers of damaged files catch those."""


def fault_of(read: Callable[[], object]) -> str:
    """What is wrong with how a file is read or refused; nothing if that is in order."""

    def late(number: int, frame: object) -> None:
        raise TooSlow(f"more than {SLOW} seconds")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SLOW)
    try:
        read()
    except (RequestError, RunFailed, OSError) as error:
        return "more than one line" if "\n" in str(error) else ""
    except (Exception, TooSlow) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "effssl" in frame.filename] or [where]
        return f"{type(error).__name__}: {str(error)[:100]} at {where.name}, from {ours[-1].filename}:{ours[-1].lineno}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return ""


@pytest.mark.usefixtures("in_tmp")
@pytest.mark.parametrize("name", KINDS)
def test_a_pipe_is_no_file(name: str, tmp_path: Path) -> None:
    """Reading one would wait forever: it is refused, or what it would hold is not needed."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    read = KINDS[name](path)
    path.unlink()
    os.mkfifo(path)
    assert fault_of(read) == ""


def test_settings_nested_without_end(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("a: " + "{b: " * 5000)
    with pytest.raises(RequestError, match="not readable as YAML"):
        read_yaml(tmp_path / "c.yaml")
