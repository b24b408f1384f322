"""Files that effssl keeps for itself or finds in the layouts of others: how each is written, and what reads it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

import effssl
from effssl.augment.options import Augment, ViewGroup
from effssl.browsing.collection import Collection, open_collection
from effssl.browsing.pictures import Pictures
from effssl.browsing.server import Service
from effssl.browsing.tags import read_tags, write_tags
from effssl.browsing.views import ViewOptions
from effssl.commands.evaluate import check_score_file
from effssl.data import webdataset
from effssl.data.cache import ImageCache
from effssl.data.loader import Batching, ViewLoader, ViewSpec
from effssl.data.transfer import SETS
from effssl.explore.embedding import embed
from effssl.explore.labels import Names
from effssl.network.encoders import build_encoder
from effssl.network.foreign import pretrained_weights
from effssl.network.loaded import dump_encoder, load_encoder
from effssl.recipes import resolve
from effssl.run import RunFolder
from effssl.runtime.errors import RequestError
from effssl.studies import load
from effssl.studies.cost import seconds_per_gflop
from effssl.studies.demo import free_scores
from effssl.studies.plan import ArmRun
from effssl.studies.report import show
from effssl.studies.runner import result_of
from effssl.studies.study import Metric
from effssl.studies.sweep import check_folder
from effssl.training.start import read_start
from effssl.training.tracking import Record, read_records
from tests.data.test_video import write_video

Reader = Callable[[], object]
PHOTO = Image.fromarray(load_sample_image("china.jpg"))
ABOUT = {"encoder": "tiny", "image_size": 16, "stem": "auto", "mean": [0.5] * 3, "std": [0.25] * 3}
SPEC = ViewSpec(Augment(scale=(0.2, 1.0)), {"large": ViewGroup(count=2)}, 16)


def save_photos(folder: Path, count: int = 4, suffix: str = ".jpg") -> list[Path]:
    """Photographs of one size in a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i}{suffix}" for i in range(count)]
    for i, path in enumerate(paths):
        PHOTO.crop((40 * i, 10 * i, 40 * i + 100, 10 * i + 80)).save(path)
    return paths


def linked(path: Path, place: Path) -> None:
    """Put the file under the name that follows from other things."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    os.link(path, place)


# ---------------------------------------------------------------------------------------------------------------
# Data


def write_film(path: Path) -> Reader:
    photos = torch.from_numpy(np.stack([np.asarray(PHOTO.crop((9 * i, 0, 9 * i + 96, 96))) for i in range(14)]))
    write_video(path, photos.permute(0, 3, 1, 2), frames=14, codec="mpeg4" if path.suffix != ".mpg" else "mpeg2video")

    def read() -> object:
        images = effssl.open_data(f"{path}:5").train
        return images.fingerprint(), [np.asarray(images.image(row)) for row in range(len(images))]

    return read


def write_cache_entry(path: Path) -> Reader:
    """A decoded image that a run finds: it is used, or decoded again, and training gets its views."""
    save_photos(path.parent / "album", 1)
    images, store = effssl.open_data(str(path.parent / "album")).train, ImageCache(path.parent / "kept")
    store.folder.mkdir()
    loader = ViewLoader(images, SPEC, Batching(1, 0, workers=0), torch.device("cpu"))
    loader.use_cache(store)
    views = [batch.pixels["large"] for batch in loader.epoch(0)]
    (entry,) = (Path(place) for place, _ in store.entries())
    shutil.copy(entry, path)

    def read() -> object:
        linked(path, entry)
        again = [batch.pixels["large"] for batch in loader.epoch(0)]
        assert all(torch.equal(a, b) for a, b in zip(views, again, strict=True)), "other views"
        return again

    return read


def write_hub_files(path: Path) -> Reader:
    """Parquet files of a data set, or one that is saved with its splits."""
    (photo,) = save_photos(path.parent.parent / "photos", 1)
    images = [{"bytes": photo.read_bytes(), "path": None}] * 2
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["x", "y"])})
    datasets.disable_progress_bars()
    data = datasets.Dataset.from_dict({"image": images, "label": [0, 1]}, features)
    if path.suffix == ".parquet":
        data.to_parquet(str(path))
    else:
        datasets.DatasetDict({"train": data, "test": data}).save_to_disk(str(path.parent))

    def read() -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("EFFSSL_DATA", str(path.parent.parent / "own"))
            shutil.rmtree(path.parent.parent / "own", ignore_errors=True)
            train = effssl.open_data(f"hf:{path.parent}").train
            return train.fingerprint(), train.labels, train.image(0)

    return read


def write_shard_index(path: Path) -> Reader:
    """The index of shards that are not scanned again."""
    from tests.data.test_webdataset import write_shard

    content = save_photos(path.parent / "album", 1)[0].read_bytes()
    files = {f"{i}.jpg": content for i in range(3)} | {"0.cls": b"1", "1.cls": b"0", "2.cls": b"1"}
    shards = str(write_shard(path.parent / "one.tar", files))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(webdataset, "KEPT_FROM", 1)
        patch.setenv("EFFSSL_DATA", str(path.parent / "own"))
        effssl.open_data(shards)
    (kept,) = (path.parent / "own/shards").iterdir()
    shutil.copy(kept, path)

    def read() -> object:
        linked(path, kept)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("EFFSSL_DATA", str(path.parent / "own"))
            train = effssl.open_data(shards).train
            with suppress(OSError):  # an image that is not where the index says: training puts another in its place
                train.image(0)
            return train.fingerprint(), train.labels, train.classes, train.paths

    return read


def write_transfer_set(path: Path) -> Reader:
    """A list in the layout in which the authors of a data set publish it."""
    name, root = SET_OF[path.name], next(part for part in path.parents if part.name == "sets")
    folder = root / {"pets": "oxford-iiit-pet", "dtd": "dtd/dtd", "sun397": "SUN397", "food": "food-101",
                     "aircraft": "fgvc-aircraft-2013b/data", "cars": "stanford_cars"}[name]  # fmt: skip
    save_photos(folder / "images")
    WRITERS[name](folder)

    def read() -> object:
        found = SETS[name](root, False, 0)
        return found.fit.fingerprint(), found.fit.labels, found.test.fingerprint()

    return read


def _pets(folder: Path) -> None:
    (folder / "annotations/trimaps").mkdir(parents=True)
    for part in ("trainval", "test"):
        (folder / f"annotations/{part}.txt").write_text("".join(f"{i} {i % 2 + 1} 1 1\n" for i in range(4)))


def _dtd(folder: Path) -> None:
    save_photos(folder / "images/banded")
    (folder / "labels").mkdir(exist_ok=True)
    (folder / "imdb").mkdir()
    for part in ("train", "val", "test"):
        (folder / f"labels/{part}1.txt").write_text("banded/0.jpg\nbanded/1.jpg\n")


def _sun397(folder: Path) -> None:
    shutil.rmtree(folder / "images")
    save_photos(folder / "a/abbey")
    save_photos(folder / "b/bar")
    (folder / "ClassName.txt").write_text("/a/abbey\n/b/bar\n")
    for part, names in (("Training", (0, 1)), ("Testing", (2, 3))):
        (folder / f"{part}_01.txt").write_text("".join(f"/a/abbey/{i}.jpg\n/b/bar/{i}.jpg\n" for i in names))


def _food(folder: Path) -> None:
    save_photos(folder / "images/pizza")
    (folder / "meta").mkdir(exist_ok=True)
    for part in ("train", "test"):
        (folder / f"meta/{part}.json").write_text(json.dumps({"pizza": ["pizza/0", "pizza/1"]}))


def _aircraft(folder: Path) -> None:
    (folder / "variants.txt").write_text("707\n727\n")
    for part in ("train", "val", "test"):
        (folder / f"images_variant_{part}.txt").write_text("0 707\n1 727\n")


def _cars(folder: Path) -> None:
    shutil.rmtree(folder / "images")
    (folder / "devkit").mkdir(exist_ok=True)
    names = np.array(["Audi TT", "Fiat 500"], object)
    scipy.io.savemat(folder / "devkit/cars_meta.mat", {"class_names": names})
    kind = [("fname", object), ("class", object)]
    rows = np.array([("0.jpg", 1), ("1.jpg", 2)], kind)
    for part, place in (("train", "devkit/cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
        save_photos(folder / f"cars_{part}")
        scipy.io.savemat(folder / place, {"annotations": rows})


WRITERS: dict[str, Callable[[Path], None]] = {
    "pets": _pets, "dtd": _dtd, "sun397": _sun397, "food": _food, "aircraft": _aircraft, "cars": _cars,
}  # fmt: skip
SET_OF = {
    "trainval.txt": "pets", "train1.txt": "dtd", "ClassName.txt": "sun397", "Training_01.txt": "sun397",
    "train.json": "food", "variants.txt": "aircraft", "images_variant_train.txt": "aircraft", "cars_meta.mat": "cars",
    "cars_train_annos.mat": "cars",
}  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------
# Weights


def write_cached_weights(path: Path) -> Reader:
    """What torchvision has downloaded earlier, under the name that it has there."""
    from torchvision import models

    torch.save(models.shufflenet_v2_x0_5().state_dict(), path)
    url = models.get_model_weights("shufflenet_v2_x0_5")["DEFAULT"].url
    place = path.parent / "hub/checkpoints" / url.rpartition("/")[2]

    def read() -> object:
        linked(path, place)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.hub, "_hub_dir", str(path.parent / "hub"))
            return pretrained_weights("shufflenet_v2_x0_5")

    return read


def write_start(path: Path) -> Reader:
    """The encoder of a run that another one starts from."""
    RunFolder.create(path.parent, resolve({"data": "digits", "encoder": "tiny", "image_size": 16}).config)
    encoder = build_encoder("tiny", 16)
    path.write_bytes(dump_encoder(encoder, ABOUT))
    return lambda: read_start(str(path), {})


# ---------------------------------------------------------------------------------------------------------------
# Runs and studies


def write_trackers(path: Path) -> Reader:
    path.write_text(json.dumps({"csv": vars(Record({"id": "x"}, 3))}))
    return lambda: read_records(path.parent)


def write_arm(path: Path) -> Reader:
    """A finished arm of a study, as the study reads it, and what the next plan takes from it."""
    run = RunFolder.create(path.parent, resolve({"data": "digits", "encoder": "tiny", "image_size": 16}).config)
    run.log({"epoch": 0, "images": 0, "seconds": 0.0, "flops": 0, "knn": 20.0})
    run.log({"epoch": 1, "step": 8, "images": 512, "seconds": 1.5, "flops": 10, "loss": 1.0, "snr": 0.1})
    knn = {"knn": Metric("knn")}
    run.add_result("knn", {"protocol": "knn", "value": 50.0, "metric": "accuracy", "constants": {}, "source": {}})
    run.encoder_path.write_bytes(dump_encoder(build_encoder("tiny", 16), ABOUT))
    arm_run = ArmRun(load("E14").arms[0], 0, {"epochs": 1}, knn, run.folder)
    return lambda: (result_of(arm_run), seconds_per_gflop(run.folder.parent))


def write_free_scores(path: Path) -> Reader:
    path.write_text(json.dumps({"data": "digits", "free": {"raw pixels": {"knn": 1.0, "linear": 2.0}}, "arms": {}}))
    return lambda: free_scores(path.parent / "run", path)


def write_shown_study(path: Path) -> Reader:
    (path.parent / "results.json").write_text("{}")
    path.write_text("# A study\n\n| a | b |\n|---|---|\n")
    return lambda: show(load("E14"), path.parent)


def write_sweep_result(path: Path) -> Reader:
    path.write_text(json.dumps([{"tried": {"lr": 0.1}, "state": "finished", "score": 20.0}]))
    return lambda: check_folder(path.parent)


def write_score(path: Path) -> Reader:
    path.write_text(json.dumps({"protocol": "knn", "value": 1.0, "metric": "accuracy", "constants": {}}))
    return lambda: check_score_file(path)


def write_recipe(path: Path) -> Reader:
    path.write_text("cost: a minute\nscore: 1.0\nobjective: byol+rotation\nlr: 0.1\nbatch_size: 32\n")
    return lambda: resolve({"data": "digits", "recipe": str(path)})


# ---------------------------------------------------------------------------------------------------------------
# Browsing


def browsed(folder: Path, **more: Any) -> Collection:
    """A few photographs with features, as `effssl browse` has them."""
    if not (folder / "f.npz").exists():
        save_photos(folder / "album")
        (folder / "e.safetensors").write_bytes(dump_encoder(build_encoder("tiny", 16), ABOUT))
        embed(str(folder / "e.safetensors"), folder / "album", folder / "f.npz", workers=0)
    return open_collection(None, None, more.get("features", folder / "f.npz"), more.get("tags"), {"workers": 0})


def write_browsed_features(path: Path) -> Reader:
    browsed(path.parent)
    return lambda: browsed(path.parent, features=path).file(ViewOptions())


def write_tag_file(path: Path) -> Reader:
    names = Names.of(browsed(path.parent).embedding.names, None)
    content = "file,label,by\n0.jpg,x,me\n1.jpg,,you\n2.jpg,y,me\n"
    path.write_text(content)

    def read() -> object:
        before = path.read_bytes() if path.is_file() else b""
        tags = read_tags(path, names)
        write_tags(path, tags | {3: "z"}, names)
        found = read_tags(path, names)
        path.write_bytes(before)
        assert found == tags | {3: "z"}, "tags are lost"
        return found

    return read


def write_asked(path: Path) -> Reader:
    """What a page sends to its server: tags, rows to copy, a picture to search by."""
    collection = browsed(path.parent)
    service = Service(collection, {}, path.parent / "saved.csv")
    place = path.stem
    if place == "search":
        service = Service(replace(collection, encoder=load_encoder(path.parent / "e.safetensors")), {})
        save_photos(path.parent / "asked", 1, path.suffix)[0].rename(path)
    else:
        path.write_text(json.dumps({"tags": {"0": "x", "2": "y"}, "copy": {"rows": [0, 1], "folder": ""}}[place]))

    def read() -> object:
        if not path.is_file():  # a request is no file
            return None
        body = path.read_bytes()
        if place == "copy":
            # Whatever it names, nothing is copied elsewhere.
            with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
                asked = json.loads(body)
                if "folder" in asked:
                    asked["folder"] = str(path.parent / "copies")
                body = json.dumps(asked).encode()
            shutil.rmtree(path.parent / "copies", ignore_errors=True)
        answer = service.post(place, body)
        assert answer is not None
        found = json.loads(answer.content)
        if "error" in found:
            raise RequestError(found["error"])
        return found

    return read


def write_browsed_photo(path: Path) -> Reader:
    """An image that is shown: small, whole, and as a file that is written."""
    save_photos(path.parent, 1, path.suffix)[0].rename(path)
    pictures = Pictures([str(path)])
    return lambda: (pictures.thumbnail(0, 64), pictures.whole(0), list(pictures.thumbnails(32)))


KEPT: dict[str, Callable[[Path], Reader]] = {
    "film.mp4": write_film, "film.avi": write_film, "film.mkv": write_film, "film.mpg": write_film,
    "cache/entry": write_cache_entry, "hub/train-0.parquet": write_hub_files, "hub/dataset_dict.json": write_hub_files,
    "shards/index.npz": write_shard_index,
    "sets/oxford-iiit-pet/annotations/trainval.txt": write_transfer_set,
    "sets/dtd/dtd/labels/train1.txt": write_transfer_set,
    "sets/SUN397/ClassName.txt": write_transfer_set, "sets/SUN397/Training_01.txt": write_transfer_set,
    "sets/food-101/meta/train.json": write_transfer_set,
    "sets/fgvc-aircraft-2013b/data/variants.txt": write_transfer_set,
    "sets/fgvc-aircraft-2013b/data/images_variant_train.txt": write_transfer_set,
    "sets/stanford_cars/devkit/cars_meta.mat": write_transfer_set,
    "sets/stanford_cars/devkit/cars_train_annos.mat": write_transfer_set,
    "cached.pth": write_cached_weights, "start/encoder.safetensors": write_start,
    "run/trackers.json": write_trackers, "arms/a/config.yaml": write_arm, "arms/a/metrics.jsonl": write_arm,
    "arms/a/results.json": write_arm, "demo/results.json": write_free_scores, "shown/README.md": write_shown_study,
    "sweep/results.json": write_sweep_result, "score.json": write_score, "recipe.yaml": write_recipe,
    "browse/f.npz": write_browsed_features, "browse/tags.csv": write_tag_file, "asked/tags.json": write_asked,
    "asked/copy.json": write_asked, "asked/search.png": write_asked, "shown/a.jpg": write_browsed_photo,
    "shown/a.png": write_browsed_photo, "shown/a.webp": write_browsed_photo,
}  # fmt: skip
