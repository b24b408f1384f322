"""Every kind of file that effssl reads, mutated: read, or refused in one line; never a traceback.

`EFFSSL_FUZZ=1000 pytest tests/test_hostile_files.py` mutates each kind a thousand times.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

import effssl
from effssl.config import config_type
from effssl.data.folder import as_listed, load_folder, write_list
from effssl.data.packing import pack
from effssl.data.saliency import SaliencyMaps
from effssl.explore.classifier import train_classifier
from effssl.explore.classifier_files import load_classifier, save_classifier
from effssl.explore.feature_files import Embedding, Metadata, read_features, write_features
from effssl.explore.labels import read_labels
from effssl.network.encoders import build_encoder
from effssl.network.foreign import read_weights
from effssl.network.loaded import dump_encoder, freeze, load_encoder
from effssl.report.study import read_study
from effssl.report.summary import summarize
from effssl.run import RunFolder
from effssl.runtime.errors import RequestError, RunFailed
from effssl.schema import read_yaml
from effssl.training.checkpoint import load_checkpoint, save_checkpoint

COUNT = int(os.environ.get("EFFSSL_FUZZ", "12"))  # mutations of each kind
SLOW, MEMORY = 10.0, 2 << 20  # seconds, KiB
DIGITS = {"data": "digits", "subset": 64}
ABOUT = {"encoder": "tiny", "image_size": 16, "stem": "auto", "mean": [0.5] * 3, "std": [0.25] * 3}
STUDY = {"study": "X", "title": "x", "claims": [], "runs": [
    {"arm": "a", "objective": "byol", "at": None, "values": {"knn": 1.0}, "published": {}, "flops": 1.0}
]}  # fmt: skip
TOKENS = (
    b"nan",
    b"-1",
    b"1e400",
    b"[]",
    b"{}",
    b"null",
    b'"',
    b"\x00",
    b"\xff\xfe",
    b"9" * 400,
    b"[" * 2000,
    b"!!int a",
)


def mutated(content: bytes, dice: random.Random) -> bytes:
    """The content with some bytes flipped, cut, repeated, or replaced by what parsers dislike."""
    data = bytearray(content)
    for _ in range(dice.choice((1, 1, 2, 8))):
        at = dice.randrange(len(data) + 1)
        kind = dice.randrange(5)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at : at + dice.randrange(1, 9)] = dice.choice(TOKENS)
        elif kind == 3:
            data[at:at] = data[at : at + dice.randrange(1, 64)]
        else:
            data[at : at + 4] = dice.randbytes(4)
    return bytes(data)


def write_photo(path: Path) -> Callable[[], object]:
    Image.fromarray(load_sample_image("china.jpg")).resize((80, 60)).save(path)
    return lambda: [load_folder(path.parent).train.image(0)]


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


def write_arrays(path: Path) -> Callable[[], object]:
    np.savez(path, images=np.zeros((4, 8, 8, 3), np.uint8), labels=np.arange(4))
    return lambda: effssl.open_data(str(path))


def write_array(path: Path) -> Callable[[], object]:
    np.save(path, np.zeros((4, 8, 8, 3), np.uint8))
    return lambda: effssl.open_data(str(path))


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
    return lambda: effssl.open_data(str(path.parent)).train.image(0)


def write_encoder(path: Path) -> Callable[[], object]:
    path.write_bytes(dump_encoder(build_encoder("tiny", 16), ABOUT))
    return lambda: load_encoder(path)


def write_classifier(path: Path) -> Callable[[], object]:
    x = np.eye(4, dtype=np.float32)
    encoder = freeze(build_encoder("tiny", 16), ABOUT)
    save_classifier(path, train_classifier(x.repeat(2, 0), list("aabbccdd")), encoder)
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
    metadata = Metadata("tiny", "a", "b", 4, False)
    write_features(path, Embedding(["a", "b"], np.ones((2, 4), np.float32), ["x", "y"], metadata))
    return lambda: read_features(path)


KINDS: dict[str, Callable[[Path], Callable[[], object]]] = {
    "in/a.jpg": write_photo, "in/a.png": write_photo, "in/a.webp": write_photo, "in/a.bmp": write_photo,
    "run/config.yaml": write_settings, "run/metrics.jsonl": write_metrics, "run/results.json": write_results,
    "study/results.json": write_study, "a.npz": write_arrays, "a.npy": write_array,
    "in/images.npz": write_list_of_images,
    "maps.npz": write_maps, "pack/pack.json": write_packed, "pack/index.npz": write_packed,
    "encoder.safetensors": write_encoder, "classifier.safetensors": write_classifier, "labels.csv": write_labels,
     "weights.pth": write_weights, "checkpoint.pt": write_checkpoint,
    "f.npz": write_feature_file, "f.csv": write_feature_file, "f.parquet": write_feature_file,
}  # fmt: skip


def most_memory() -> int:
    """The largest resident size of this process so far, in KB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KINDS)
def test_mutated_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    read = KINDS[name](path)
    read()  # as it was written, it is read
    whole, dice, before = path.read_bytes(), random.Random(name), most_memory()
    for number in range(COUNT):
        content = mutated(whole, dice)
        path.write_bytes(content)
        started = time.monotonic()
        try:
            read()
        except (RequestError, RunFailed, OSError) as error:
            said = str(error)
        else:
            said = ""
        assert time.monotonic() - started < SLOW, f"mutation {number}"
        assert "\n" not in said or "\n" in str(path), f"mutation {number}: {said}"
    assert most_memory() - before < MEMORY


@pytest.mark.parametrize("name", KINDS)
def test_a_pipe_is_no_file(name: str, tmp_path: Path) -> None:
    """Reading one would wait forever."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    read = KINDS[name](path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises((RequestError, RunFailed, OSError)):
        read()


def test_settings_nested_without_end(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("a: " + "{b: " * 5000)
    with pytest.raises(RequestError, match="not readable as YAML"):
        read_yaml(tmp_path / "c.yaml")
