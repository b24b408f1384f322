"""Fine-tuning as a candidate of classify: chosen where the frozen features lack what the labels are about."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import nn

import effssl
from effssl.network.loaded import LoadedEncoder

COUNT, LABELLED = 60, 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise in green and blue; every second image is dark in red, the others are bright."""
    folder = tmp_path_factory.mktemp("red")
    draw = np.random.default_rng(0)
    for i in range(COUNT):
        pixels = draw.integers(0, 256, (24, 20, 3), dtype=np.uint8)
        pixels[:, :, 0] = (20, 235)[i % 2]
        Image.fromarray(pixels).save(folder / f"{i:02}.png")
    return folder


@pytest.fixture(scope="module")
def labels() -> dict[str, str]:
    return {f"{i:02}.png": ("dark", "bright")[i % 2] for i in range(LABELLED)}


@pytest.fixture
def blind() -> LoadedEncoder:
    """An encoder that does not see red."""
    encoder = effssl.load("tiny", weights="random", image_size=16)
    first = next(module for module in encoder.modules() if isinstance(module, nn.Conv2d))
    first.weight[:, 0] = 0
    return encoder


def test_it_is_chosen_where_the_frozen_features_do_not_separate_the_classes(
    blind: LoadedEncoder, folder: Path, labels: dict[str, str], in_tmp: Path
) -> None:
    before = blind.fingerprint()
    found = effssl.classify(blind, folder, labels, finetune="on", workers=0)
    compared = found.classifier.expected.compared
    assert found.classifier.name == "fine-tuned"
    assert len(compared) == 3
    assert min(compared["fine-tuned"] - compared[name] for name in compared if name != "fine-tuned") > 20
    truth = [("dark", "bright")[int(one.file[:2]) % 2] for one in found.predictions]
    assert np.mean([one.label == label for one, label in zip(found.predictions, truth, strict=True)]) > 0.8
    # The given encoder stays as it is; the saved one is the fine-tuned one.
    assert blind.fingerprint() == before != found.encoder.fingerprint()
    saved = found.save("tuned.safetensors")
    again = effssl.classify(saved, folder, workers=0)
    assert np.allclose(again.probabilities[LABELLED:], found.probabilities, atol=1e-6)
    assert not any(p.requires_grad for p in effssl.load(saved).parameters())


def test_it_is_left_out_where_it_cannot_be_compared(
    blind: LoadedEncoder, folder: Path, labels: dict[str, str], capsys: pytest.CaptureFixture
) -> None:
    few = dict(list(labels.items())[:8])
    found = effssl.classify(blind, folder, few, workers=0)
    assert len(found.classifier.expected.compared) == 2
    assert "fine-tuning is not compared with fewer than 30 labelled images" in capsys.readouterr().err
    features = effssl.embed(blind, folder, workers=0)
    with pytest.raises(effssl.RequestError, match="cannot be compared: it needs the images themselves"):
        effssl.classify(blind, None, few, features=features, finetune="on")
    with pytest.raises(effssl.RequestError, match="pixels has no weights to train"):
        effssl.classify("pixels", folder, few, image_size=8, finetune="on", workers=0)
    with pytest.raises(effssl.RequestError, match="finetune is auto, on or off, not 'yes'"):
        effssl.classify(blind, folder, few, finetune="yes", workers=0)  # type: ignore[arg-type]
