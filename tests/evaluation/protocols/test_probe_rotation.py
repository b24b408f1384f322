"""The rotation probe against scikit-learn and on features with a known rotation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import effssl
from effssl.data import Data
from effssl.evaluation.protocols.probe_rotation import RotationProbeOptions, rotation_accuracy
from effssl.features.extract import extract
from effssl.network.loaded import LoadedEncoder


def test_features_of_rotated_images(encoder: LoadedEncoder, digits: Data) -> None:
    turned = extract(encoder, digits.test, turns=1).h
    with torch.inference_mode():
        by_hand = encoder.encoder(torch.rot90(encoder.preprocess(digits.test.pixels / 255), 1, (2, 3)))
        z = encoder.projector(by_hand)
    assert torch.allclose(turned, by_hand, atol=1e-5)
    assert torch.allclose(extract(encoder, digits.test, turns=1, on="z").h, z, atol=1e-5)


def test_rotation_is_read_where_it_is_and_not_where_it_is_not() -> None:
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(4, 400, 8, generator=g)
    options = RotationProbeOptions(epochs=20, batch=64)
    assert 15 < rotation_accuracy(noise[:, :300], noise[:, 300:], options) < 35  # chance is 25
    marked = noise.clone()
    marked[torch.arange(4), :, torch.arange(4)] += 6
    assert rotation_accuracy(marked[:, :300], marked[:, 300:], options) > 97


def test_rotation_probe_is_near_a_logistic_regression(encoder: LoadedEncoder, digits: Data) -> None:
    """On real features a two-layer probe does at least as well as scikit-learn's linear one."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    parts = [[extract(encoder, images, turns=k).h for k in range(4)] for images in (digits.train, digits.test)]
    turns = [torch.arange(4).repeat_interleave(len(part[0])).numpy() for part in parts]
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    linear.fit(torch.cat(parts[0]).numpy(), turns[0])
    theirs = 100 * linear.score(torch.cat(parts[1]).numpy(), turns[1])
    score = effssl.evaluate("probe-rotation", encoder, digits, epochs=20, on="h")
    assert score.value > theirs - 3
    assert score.value < 100


def test_a_run_keeps_its_projector_and_views(in_tmp: Path) -> None:
    run = effssl.pretrain("digits", "rotation", out="a", epochs=8, quiet=True, subset=512, lr=0.1)
    f = run.encoder(projector=True)
    from effssl.training.checkpoint import load_checkpoint

    state = load_checkpoint(run.checkpoint_path)["objective"]
    for key, value in f.projector.state_dict().items():
        assert torch.equal(value, state[f"network.projector.{key}"])
    assert f.about["augment"]["scale"] == [0.2, 1.0]
    score = run.evaluate("probe-rotation", epochs=10)
    assert score.value > 60  # it was trained to know
    assert score.also["on_z"] > 45
    with pytest.raises(effssl.RequestError, match="no projector"):
        effssl.evaluate("probe-rotation", run.encoder(), effssl.open_data("digits"), on="z")
