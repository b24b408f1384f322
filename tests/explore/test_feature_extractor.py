"""The encoder as a transformer of scikit-learn."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from torch import Tensor

import effssl
from effssl import RequestError
from effssl.network.loaded import LoadedEncoder


@pytest.fixture(scope="module")
def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("china/*.png")) + sorted(folder.glob("flower/*.png"))


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def test_all_kinds_of_images_give_the_same_features(
    photos: Tensor, files: list[Path], run: Path, encoder: LoadedEncoder
) -> None:
    expected = encoder(photos).numpy()
    step = effssl.FeatureExtractor(run, batch=10)
    last = photos.permute(0, 2, 3, 1).numpy()
    for images in (photos, photos.numpy(), last, list(last)):
        np.testing.assert_allclose(step.transform(images), expected, atol=1e-4)
    floats = step.transform(last / 255)  # which are not rounded to gray levels when they are resized
    np.testing.assert_allclose(step.transform((last / 255).astype(np.float32)), floats, atol=1e-4)
    assert cosines(floats, expected).min() > 0.999
    pil_images = [Image.open(file) for file in files]
    np.testing.assert_allclose(step.fit_transform(pil_images), expected, atol=1e-4)
    exact = np.array(effssl.embed(run, files[0].parent, workers=0).features)
    for paths in (files, [str(file) for file in files], np.array([str(file) for file in files]), np.array(files)):
        made = step.transform(paths)
        np.testing.assert_allclose(made[:32], exact, atol=1e-5)  # as effssl embed reads them
        np.testing.assert_allclose(made, expected, atol=1e-4)
    assert step.transform([]).shape == (0, encoder.dim)


def test_in_a_pipeline_it_learns_and_can_be_cloned_and_pickled(files: list[Path], run: Path) -> None:
    labels = [file.parent.name for file in files]
    pipeline = make_pipeline(effssl.FeatureExtractor(run), LogisticRegression(max_iter=500))
    assert cross_val_score(pipeline, files, labels, cv=3).mean() > 0.75
    fitted = pipeline.fit(files[::2], labels[::2])
    guesses = fitted.predict(files[1::2])
    stored = pickle.dumps(fitted)
    assert len(stored) < 100_000  # the encoder stays in its file
    assert (pickle.loads(stored).predict(files[1::2]) == guesses).all()
    fitted.set_params(featureextractor__batch=7)
    assert (clone(fitted).fit(files[::2], labels[::2]).predict(files[1::2]) == guesses).all()


def test_parameters_and_names(run: Path, encoder: LoadedEncoder) -> None:
    step = effssl.FeatureExtractor(run, batch=7)
    assert step.get_params()["batch"] == 7
    assert clone(step).get_params() == step.get_params()
    assert step.get_feature_names_out().tolist() == [f"f{i}" for i in range(encoder.dim)]
    assert step.fit([]).n_features_out_ == encoder.dim
    step.set_params(run="small", weights="random", image_size=16)  # another encoder from here on
    assert step.transform(np.zeros((1, 8, 8, 3), np.uint8)).shape == (1, 128)
    ready = effssl.FeatureExtractor(encoder)
    images = np.zeros((2, 8, 8, 3), np.uint8)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(clone(ready))).transform(images), ready.transform(images))


def test_output_as_a_table(run: Path, files: list[Path], encoder: LoadedEncoder) -> None:
    pytest.importorskip("pandas")
    table = effssl.FeatureExtractor(run).set_output(transform="pandas").fit_transform(files[:4])
    assert table.shape == (4, encoder.dim)
    assert list(table.columns[:2]) == ["f0", "f1"]


def test_an_image_that_cannot_be_read_is_an_error_because_rows_must_fit(run: Path, folder: Path) -> None:
    step, good = effssl.FeatureExtractor(run), folder / "china/00.png"
    for images, says in [
        ([good, folder / "added/broken.jpg"], r"1 of 2 images cannot be read, e\.g\. .*broken"),
        ([good, folder / "added/cut off.jpg"], "cannot be decoded"),
        (str(good), "not a single str"),
        ([good, 3], "a list of paths or of PIL images"),
        (np.zeros((2, 8, 8, 3), np.complex64), "expected whole numbers or floats"),
        (np.zeros((2, 5)), "images of shape"),
        (torch.full((1, 3, 8, 8), 7.0), "floats between 0 and 1"),
    ]:
        with pytest.raises(RequestError, match=says):
            step.transform(images)
    with pytest.raises(RequestError, match="batch is 0"):
        effssl.FeatureExtractor(run, batch=0).transform([good])
    with pytest.raises(RequestError, match="no run folder"):
        effssl.FeatureExtractor("nowhere").fit([good])
