"""ONNX files give the features and the predictions of effssl for photographs of odd sizes, with the code of their card.

So does the server of examples/.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_sample_image

import effssl
from effssl.augment.center import center_square
from effssl.augment.crop import center_boxes
from effssl.explore.feature_files import Embedding
from effssl.features.heads import NeighborHead

SERVER = Path(__file__).parent.parent.parent / "examples/serve.py"
COUNT, SIZE = 20, 48
ORIENTATION = 0x0112


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 photographs of odd sizes: JPEGs large and small, one rotated by its EXIF tag, one gray; PNGs."""
    folder = tmp_path_factory.mktemp("photographs")
    photos = [Image.fromarray(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
    draw = np.random.default_rng(0)
    for i in range(COUNT):
        width, height = (int(x) for x in draw.integers(31, 900, 2))
        left, top = (int(x) for x in draw.integers(0, 200, 2))
        photo = photos[i % 2].crop((left, top, 640, 427)).resize((width, height))
        exif = Image.Exif()
        exif[ORIENTATION] = 6 if i == 5 else 1
        if i % 4 == 0:
            photo.save(folder / f"{i:02}.png")
        else:
            (photo.convert("L") if i == 7 else photo).save(folder / f"{i:02}.jpg", quality=92, exif=exif)
    return folder


@pytest.fixture(scope="module")
def embedding(folder: Path) -> Embedding:
    return effssl.embed(effssl.load("tiny", weights="random", image_size=SIZE), folder, workers=0)


@pytest.fixture(scope="module", params=["chosen", pytest.param("neighbors", marks=pytest.mark.long)])
def classifier(folder: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A saved classifier, the chosen one or kNN; beside it as model.onnx."""
    labels = {f"{i:02}.{'png' if i % 4 == 0 else 'jpg'}": ("china", "flower")[i % 2] for i in range(10)}
    encoder = effssl.load("tiny", weights="random", image_size=SIZE)
    found = effssl.classify(encoder, folder, labels, finetune="off", workers=0, label_next=0)
    if request.param == "neighbors":
        features = torch.from_numpy(np.array(effssl.embed(encoder, folder, workers=0).features[:10]))
        head = NeighborHead(F.normalize(features, dim=1), torch.arange(10) % 2, 3, 2)
        found = replace(found, classifier=replace(found.classifier, head=head, name="kNN (k=3)"))
    saved = found.save(tmp_path_factory.mktemp("exported") / "saved.safetensors")
    effssl.export(saved, "onnx", saved.with_name("model.onnx"))
    return saved


def test_the_card_gives_the_features_of_embed(
    classifier: Path, folder: Path, embedding: Embedding, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = classifier.with_name("model.onnx.md").read_text()
    code, test = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert "probabilities` has a column for each class, in this order: china, flower." in card
    again = effssl.classify(classifier, folder, workers=0).probabilities
    monkeypatch.chdir(classifier.parent)
    scale = max(1.0, float(np.abs(embedding.features).max()))
    for name, features, probabilities in zip(embedding.names, embedding.features, again, strict=True):
        scope: dict = {}
        exec(code.replace("photo.jpg", name), scope)
        assert np.abs(scope["features"][0] - features).max() < 1e-4 * scale, name
        assert np.abs(scope["probabilities"][0] - probabilities).max() < 1e-4, name
    exec(test, scope)
    with pytest.raises(AssertionError):
        exec(test.replace("expected = [", "expected = [1 + "), scope)


@pytest.fixture
def server(classifier: Path) -> Iterator[str]:
    command = [sys.executable, str(SERVER), str(classifier.with_name("model.onnx")), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.terminate()


def test_the_server_predicts_as_effssl_does(server: str, classifier: Path, folder: Path, embedding: Embedding) -> None:
    again = effssl.classify(classifier, folder, workers=0).probabilities
    for row in (0, 5, 9):
        with urllib.request.urlopen(server, Path(embedding.names[row]).read_bytes(), timeout=60) as answer:
            said = json.load(answer)
        assert said == pytest.approx(dict(zip(["china", "flower"], again[row].tolist(), strict=True)), abs=1e-4)
    with pytest.raises(urllib.error.HTTPError, match="not an image"):
        urllib.request.urlopen(server, b"no image", timeout=60)


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
def test_center_squares_are_those_of_pil_to_the_gray_level(name: str) -> None:
    draw = np.random.default_rng(2)
    for share in (1.0, 0.875, 0.96):
        height, width = (int(x) for x in draw.integers(9, 400, 2))
        size = int(draw.integers(4, 130))
        pixels = draw.integers(0, 256, (height, width, 3), dtype=np.uint8)
        top, left, side, _ = center_boxes(torch.tensor([[height, width]]), share)[0].tolist()
        square = Image.fromarray(pixels).crop((left, top, left + side, top + side))
        theirs = np.asarray(square.resize((size, size), getattr(Image.Resampling, name.upper())))
        ours = center_square(torch.from_numpy(pixels).permute(2, 0, 1)[None], size, share, name)
        assert np.array_equal(ours[0].permute(1, 2, 0).numpy(), theirs)
